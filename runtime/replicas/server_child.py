"""The server of one replica, as a process that ends with the actor that started it."""

import os
import sys

from runtime.child import die_with_parent
from runtime.launch import serve

if __name__ == "__main__":
    die_with_parent(os.getppid())
    sys.exit(serve(sys.argv[1:]))
