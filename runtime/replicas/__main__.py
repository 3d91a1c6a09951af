"""Serve a model by several servers: `python -m runtime.replicas --help` lists the flags."""

import sys

from runtime.replicas.command import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
