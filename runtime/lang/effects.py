"""What a body that is traced must not do: calls that are noticed beyond the program.

They are recognised as they are about to happen, by the function that is called, whoever calls it:
the body, a tool or a library. Those of Python's own modules are known, so recognising is sure;
what other compiled code does is not recognised.
"""

import dis
import io
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

# Of `posix` and `nt` those that read are not here.
_OS = (
    "abort chdir chmod chown execv execve fork forkpty kill killpg link makedirs mkdir mkfifo open "
    "popen posix_spawn posix_spawnp putenv remove rename replace rmdir sendfile spawnv spawnve "
    "startfile symlink system truncate unlink unsetenv utime write writev"
)
# Compiled functions by module.
_EFFECTS: Mapping[str, frozenset[str]] = {
    "builtins": frozenset(("print", "input", "breakpoint")),
    "io": frozenset(("open", "open_code")),
    "_io": frozenset(("open", "open_code")),
    "time": frozenset(("sleep",)),
    "_socket": frozenset(("getaddrinfo", "gethostbyname", "gethostbyname_ex", "socketpair")),
    "_posixsubprocess": frozenset(("fork_exec",)),
    "_winapi": frozenset(("CreateProcess",)),
    "_thread": frozenset(("start_new_thread", "start_new", "start_joinable_thread")),
    "posix": frozenset(_OS.split()),
    "nt": frozenset(_OS.split()),
}
_OF_FILES_AND_SOCKETS = (
    "write writelines read readline readlines readinto connect connect_ex send sendall sendto "
    "recv recv_into recvfrom accept bind listen"
)
_METHODS = frozenset(_OF_FILES_AND_SOCKETS.split())
_OUTER_NAMES = ("STORE_GLOBAL", "DELETE_GLOBAL")


def assigns_outer_names(function: Callable[..., Any]) -> bool:
    """Return whether a function's code assigns global variables, or those of an enclosing one."""
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    return any(
        step.opname in _OUTER_NAMES
        or (step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in code.co_freevars)
        for step in dis.get_instructions(code)
    )


@contextmanager
def without_effects(stop: type[BaseException]) -> Iterator[None]:
    """Inside the block, raise `stop` in place of a call that has effects, in this thread.

    Where a profiler has the thread already, effects happen.
    """
    if sys.getprofile() is not None:
        yield
        return

    def look(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and _has_effects(called) and not _is_not_the_bodys(frame):
            refuse()

    def refuse() -> NoReturn:
        raise stop

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)


def _has_effects(called: Any) -> bool:
    name, owner = called.__name__, getattr(called, "__self__", None)
    if called.__module__ is not None:
        return name in _EFFECTS.get(called.__module__, ())
    if name not in _METHODS:
        return False
    if isinstance(owner, io.StringIO | io.BytesIO):
        return False
    return isinstance(owner, io.IOBase) or type(owner).__module__ in ("socket", "ssl", "_ssl")


def _is_not_the_bodys(frame: FrameType | None) -> bool:
    """Return whether a call is made by a finalizer, which runs at any point, or by the language."""
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if frame.f_code.co_name == "__del__" or module in ("weakref", "runtime.lang.loop"):
            return True
        frame = frame.f_back
    return False
