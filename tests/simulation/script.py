"""What happens in a life: its world, and events by time. As JSON lines, to print and run again."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

__all__ = [
    "Abort",
    "ApiDies",
    "ApiStall",
    "Arrive",
    "Bad",
    "Event",
    "Flush",
    "NoRoom",
    "Question",
    "Rot",
    "SchedulerDies",
    "Script",
    "Stall",
    "WorldSpec",
]


class WorldSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sizes and settings of one world.

    page, swa_page, window, state  as in `TreeSpec`
    pages, swa_pages, states       of the pools of each replica
    live_states   rows have states in a form of their own
    replay        whether what has no resume point is replayed
    quota         tokens of a namespace; None: no limit
    unread        tokens of a choice that a reader may leave lying
    """

    replicas: int = 1
    page: int = 8
    swa_page: int = 4
    window: int = 8
    state: bool = True
    live_states: bool = False
    pages: int = 60
    swa_pages: int = 40
    states: int = 12
    rows: int = 4
    chunk: int = 16
    replay: bool = False
    overlap: bool = True
    reuse: bool = True
    policy: str = "lpm"
    turns: bool = True
    branch_min: int = 8
    waypoint: int = 0
    quota: int | None = None
    max_queued: int = 64
    max_queued_tokens: int | None = None
    aging_s: float = 0.0
    queue_timeout_s: float | None = None
    request_timeout_s: float | None = None
    unread: int = 1 << 16
    copy_pages: int = 1000


class Event(msgspec.Struct, frozen=True, omit_defaults=True, tag=True, kw_only=True):
    """Something that happens at a time, in seconds."""

    at: float


class Arrive(Event, frozen=True, omit_defaults=True, kw_only=True):
    """A client calls.

    key     names the call in other events
    prompt  a character for each token
    share   index of an API key
    reader  "read": at once; "slow": after `patience_s` each; "leave", "drop": goes after `deltas`
            deltas, with or without a word; "never": reads nothing for `patience_s`
    """

    key: int
    prompt: str
    new: int | None = 8
    least: int = 0
    n: int = 1
    temperature: float = 0.0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    namespace: str = ""
    priority: int = 0
    share: int = 0
    timeout_s: float | None = None
    stream: bool = True
    logprobs: bool = False
    boundaries: tuple[int, ...] = ()
    background: bool = False
    reader: str = "read"
    deltas: int = 0
    patience_s: float = 0.0

    @property
    def tokens(self) -> list[int]:
        """The tokens of the prompt."""
        return [*map(ord, self.prompt)]


class Abort(Event, frozen=True, kw_only=True):
    """A client aborts a call by its name."""

    key: int


class Flush(Event, frozen=True, kw_only=True):
    """Somebody empties the cache."""


class Question(Event, frozen=True, kw_only=True):
    """Somebody asks for counters and for the cache."""


class Bad(Event, frozen=True, kw_only=True):
    """The numbers of one row of a step to come are not finite.

    kind  "chunk", "decode", "mixed" (any row of a step with both) or "replay"
    row   which of those of that kind
    """

    kind: str
    row: int


class Rot(Event, frozen=True, kw_only=True):
    """A page of the tree goes bad by itself; `draw` says which."""

    draw: int


class NoRoom(Event, frozen=True, kw_only=True):
    """The next allocations fail, of pages or of points."""

    calls: int
    points: bool


class Stall(Event, frozen=True, kw_only=True):
    """The next step takes longer."""

    seconds: float


class ApiStall(Event, frozen=True, kw_only=True):
    """The API process does nothing for a while."""

    seconds: float


class SchedulerDies(Event, frozen=True, kw_only=True):
    """The scheduler is lost; another one takes its place after so many seconds."""

    seconds: float


class ApiDies(Event, frozen=True, kw_only=True):
    """The API process is lost, and the scheduler with it; both start again."""


AnyEvent = (
    Arrive
    | Abort
    | Flush
    | Question
    | Bad
    | Rot
    | NoRoom
    | Stall
    | ApiStall
    | SchedulerDies
    | ApiDies
)


class Script(msgspec.Struct, frozen=True):
    """A world and what happens in it, in order of time.

    seed  of how long steps take
    """

    seed: int
    world: WorldSpec
    events: Sequence[AnyEvent]

    def lines(self) -> str:
        """Return it as JSON lines: seed and world, then an event each."""
        head = msgspec.json.encode((self.seed, self.world))
        return "\n".join(part.decode() for part in (head, *map(msgspec.json.encode, self.events)))

    def with_events(self, events: Iterable[AnyEvent]) -> "Script":
        """Return it with other events."""
        return Script(self.seed, self.world, list(events))


def read_script(path: Path) -> Script:
    """Return the script in a file of JSON lines. Raises msgspec.DecodeError."""
    head, *events = path.read_text("utf-8").splitlines()
    seed, world = msgspec.json.decode(head, type=tuple[int, WorldSpec])
    decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
    return Script(seed, world, [decoder.decode(line) for line in events])
