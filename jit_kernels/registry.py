"""Which implementation of an op runs: chosen once, forced by name, or refused aloud.

The choice is made for each kind of device that the machine has, and a call goes where its first
tensor is: on a machine with CUDA, tensors on the CPU run what a machine without it would run.
`KERNEL_<OP>=name` in the environment forces a backend. A backend's module is imported only when
it is chosen, so that a machine without a vendor library never touches it; torch when an op is.
"""

import difflib
import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["Backend", "BackendUnavailable", "chosen", "select", "unknown_forced"]

_PREFIX = "KERNEL_"
_CHOSEN: dict[tuple[str, str], str] = {}


class BackendUnavailable(Exception):
    """A backend that was asked for by name cannot run here; the text says why."""


def _nothing_against() -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Backend:
    """One implementation of an op.

    target   "module:function", imported when the backend is chosen
    why_not  returns what stands against it on this machine, None when it can run
    device   type of the tensors it takes, "cpu" or "cuda"; None takes any
    """

    name: str
    target: str
    why_not: Callable[[], str | None] = _nothing_against
    device: str | None = None

    def takes(self, device: str) -> bool:
        """Say whether tensors on a device of this type may be handed to it."""
        return self.device in (None, device)


def select(op: str, backends: Sequence[Backend]) -> Callable[..., Any]:
    """Return the function of the first backend that can run, and remember the choice.

    op        name of the public function; `KERNEL_<OP>` in capitals forces a backend, on the
              devices whose tensors it takes
    backends  best first; one of them, the last as a rule, is the reference, which runs anywhere
    With several kinds of devices the function looks where its first argument, a tensor, lies.
    Raises BackendUnavailable when a forced backend is unknown or cannot run, or none can.
    """
    devices = device_types()
    forced = _forced(op, backends, devices)
    functions: dict[str, Callable[..., Any]] = {}
    for device in devices:
        mine = [backend for backend in backends if backend.takes(device)]
        backend = forced if forced in mine else _first_usable(op, mine)
        module, _, function = backend.target.partition(":")
        functions[device] = getattr(importlib.import_module(module), function)
        _CHOSEN[op, device] = backend.name
    if len(devices) == 1:
        return functions[devices[0]]

    here, there = functions["cpu"], functions["cuda"]

    def run(first: "torch.Tensor", *args: Any, **kwargs: Any) -> Any:
        return (there if first.is_cuda else here)(first, *args, **kwargs)

    return run


def unknown_forced() -> list[str]:
    """Return what is wrong with names in the environment that force nothing.

    For when all ops that will run were imported. Others may have variables of that kind, too, so
    that they are no error.
    """
    known = {f"{_PREFIX}{op.upper()}" for op, _ in _CHOSEN}
    faults: list[str] = []
    for variable in sorted(os.environ):
        if variable.startswith(_PREFIX) and variable not in known:
            alike = difflib.get_close_matches(variable, known, n=3)
            hint = f"; there is {', '.join(alike)}" if alike else ""
            faults.append(f"{variable} forces nothing: no such op runs here{hint}")
    return faults


def device_types() -> list[str]:
    """Return the types of devices that this machine computes on."""
    import torch  # host libraries raise this module's error in processes that have no tensors

    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def chosen(device: str = "cpu") -> dict[str, str]:
    """Return the backend in use on a type of device of each op imported so far, by op name."""
    return {op: name for (op, where), name in sorted(_CHOSEN.items()) if where == device}


def _forced(op: str, backends: Sequence[Backend], devices: Sequence[str]) -> Backend | None:
    variable = f"{_PREFIX}{op.upper()}"
    name = os.environ.get(variable)
    if name is None:
        return None
    for backend in backends:
        if backend.name == name:
            reason = backend.why_not()
            if reason is None and not any(map(backend.takes, devices)):
                reason = f"it takes no tensors of {' or '.join(devices)}"
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
