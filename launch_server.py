"""Serve a model: `python launch_server.py --help` lists the flags."""

import sys

from runtime.launch import serve

if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:]))
