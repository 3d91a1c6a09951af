"""Messages about profiles of a running scheduler: start one, stop it, and what came of it.

Part of the unions of `runtime.messages`.
"""

import msgspec

# Bounds the memory of a profile that nobody stops, and how long the scheduler stalls at its end.
MAX_PROFILE_STEPS = 1000


class StartProfile(msgspec.Struct, frozen=True, tag=True):
    """Trace the steps of the scheduler. Answered by `Profiled` once it traces, or will.

    folder      of the file, below the one that the server was started with; "" is that one
    first_step  number of the first step traced, from 1 at the scheduler's start; where that is
                past, the next step
    steps       how many; None: until stopped, and `MAX_PROFILE_STEPS` at most
    cpu, gpu    what is traced; gpu is left out where there is none
    stacks      with the lines of Python that led to each operation; slow
    shapes      with the shapes of each operation's arguments
    """

    call_id: int
    folder: str = ""
    first_step: int = 1
    steps: int | None = None
    cpu: bool = True
    gpu: bool = True
    stacks: bool = False
    shapes: bool = False


class StopProfile(msgspec.Struct, frozen=True, tag=True):
    """End the profile that runs. Answered by `Profiled` once its file is written."""

    call_id: int


class Profiled(msgspec.Struct, frozen=True, tag=True):
    """Answer to `StartProfile` and `StopProfile`.

    done     whether it was started, or stopped
    message  what happened, or why nothing did
    file     path of the trace, which is there once the profile has ended; "" where there is none
    files    of several ranks, the trace of each, `file` being that of the first; else empty
    """

    call_id: int
    done: bool
    message: str
    file: str = ""
    files: list[str] = []
