"""The engine inside a Python program: the same scheduler as a server's, without HTTP."""

from runtime.engine.engine import Engine

__all__ = ["Engine"]
