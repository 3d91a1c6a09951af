"""Which implementation of an op runs: chosen once, forced by name, or refused aloud.

`KERNEL_<OP>=name` in the environment forces a backend. A backend's module is imported only when
it is chosen, so that a machine without a vendor library never touches it.
"""

import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Backend", "BackendUnavailable", "chosen", "select"]

_CHOSEN: dict[str, str] = {}


class BackendUnavailable(Exception):
    """A backend that was asked for by name cannot run here; the text says why."""


def _nothing_against() -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Backend:
    """One implementation of an op.

    target   "module:function", imported when the backend is chosen
    why_not  returns what stands against it on this machine, None when it can run
    """

    name: str
    target: str
    why_not: Callable[[], str | None] = _nothing_against


def select(op: str, backends: Sequence[Backend]) -> Callable[..., Any]:
    """Return the function of the first backend that can run, and remember the choice.

    op        name of the public function; `KERNEL_<OP>` in capitals forces a backend
    backends  best first; the last one is the reference, which runs anywhere
    Raises BackendUnavailable when a forced backend is unknown or cannot run, or none can.
    """
    backend = _forced(op, backends) or _first_usable(op, backends)
    module, _, function = backend.target.partition(":")
    result: Callable[..., Any] = getattr(importlib.import_module(module), function)
    _CHOSEN[op] = backend.name
    return result


def chosen() -> dict[str, str]:
    """Return the backend in use of each op imported so far, by op name."""
    return dict(sorted(_CHOSEN.items()))


def _forced(op: str, backends: Sequence[Backend]) -> Backend | None:
    variable = f"KERNEL_{op.upper()}"
    name = os.environ.get(variable)
    if name is None:
        return None
    for backend in backends:
        if backend.name == name:
            reason = backend.why_not()
            if reason is not None:
                raise BackendUnavailable(f"{variable}={name}: {reason}")
            return backend
    known = ", ".join(backend.name for backend in backends)
    raise BackendUnavailable(f"{variable}={name}: there is no such backend, only {known}")


def _first_usable(op: str, backends: Sequence[Backend]) -> Backend:
    reasons: list[str] = []
    for backend in backends:
        reason = backend.why_not()
        if reason is None:
            return backend
        reasons.append(f"{backend.name}: {reason}")
    raise BackendUnavailable(f"no backend of {op} can run here ({'; '.join(reasons)})")
