"""Serve a model: `python launch_server.py --help` lists the flags."""

import sys

if __name__ == "__main__":
    # Imported here because the scheduler process, too, begins by importing this file.
    from runtime.launch import serve

    sys.exit(serve(sys.argv[1:]))
