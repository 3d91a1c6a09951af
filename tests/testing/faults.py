"""Faults on demand: a call that fails when its number comes up, and a clock that jumps."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class CallCount:
    """How often a method was called, and whether its fault was raised."""

    calls: int = 0
    raised: bool = False


@contextmanager
def fail_call(
    owner: type, method: str, *, number: int, error: Callable[[], Exception]
) -> Generator[CallCount]:
    """Let call `number` (from 1, over all instances) of `owner.method` raise `error()`.

    The method does not run on that call, so nothing may have changed. Loop over `number` until
    `raised` stays False, and every allocation of a scenario has failed once. The class itself
    is patched, so slots do not matter; it is restored on exit.
    """
    real = getattr(owner, method)
    count = CallCount()

    def faulty(*args: Any, **kwargs: Any) -> Any:
        count.calls += 1
        if count.calls == number:
            count.raised = True
            raise error()
        return real(*args, **kwargs)

    setattr(owner, method, faulty)
    try:
        yield count
    finally:
        setattr(owner, method, real)


class JumpingClock:
    """A stand-in for `time.monotonic` that moves only when it is told to."""

    def __init__(self, start_s: float = 1000.0) -> None:
        self._now_s = start_s

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move by `seconds`; negative ones model a clock that was set back."""
        self._now_s += seconds
