"""Failures as a program's user sees them: named after what failed, without internal frames."""

from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from runtime.errors import Aborted, RequestError

Result = TypeVar("Result")
INTERNAL = ("runtime.lang.", "concurrent.futures.")


def label(kind: str, name: str | None) -> str:
    """Return how a failure calls a generation or a choice: `gen("answer")`."""
    return f"{kind}()" if name is None else f'{kind}("{name}")'


def named(error: RequestError, label: str) -> RequestError:
    """Return the same error with `label` before its message."""
    message = f"{label}: {error.message}"
    copy = type(error).__new__(type(error), message)
    copy.__dict__.update(error.__dict__)
    copy.message = message
    return copy.with_traceback(error.__traceback__)


def shorten(error: RequestError) -> None:
    """Take the frames of this package out of an error's traceback.

    They say nothing that its message does not; those of the program's own code stay.
    """
    frames: list[TracebackType] = []
    frame = error.__traceback__
    while frame is not None:
        if not frame.tb_frame.f_globals.get("__name__", "").startswith(INTERNAL):
            frames.append(frame)
        frame = frame.tb_next
    kept: TracebackType | None = None
    for frame in reversed(frames):
        kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    error.__traceback__ = kept


def bare(error: BaseException) -> BaseException:
    """Return an error to raise anew: a RequestError without any frames it has come through."""
    return error.with_traceback(None) if isinstance(error, RequestError) else error


async def labelled(work: Coroutine[Any, Any, Result], label: str) -> Result:
    """Return what a request returns. Raises its RequestError with `label` before the message."""
    try:
        return await work
    except RequestError as error:
        raise named(error, label) from None


def cancelled() -> Aborted:
    """Return what reading raises after a program was cancelled."""
    return Aborted("the program was cancelled")
