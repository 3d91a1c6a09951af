"""What a router knows of its replicas: their caches, and the requests it sent them.

A prompt counts as cached where its blocks are, by the replica's events, or where they are being
computed for an earlier request. What a replica has yet to compute is counted here, exactly: no
load is polled.
"""

import threading
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from runtime.replicas.block_index import BlockIndex
from runtime.replicas.choice import Candidate, ChoiceCosts, Intake, choose
from runtime.replicas.prompt_keys import PromptKeys

__all__ = ["Board", "ReplicaView", "RoutedRequest"]

# Short conversations stay together as well: none is moved for fewer than four running requests.
_COSTS = ChoiceCosts(leave_least=4 * ChoiceCosts().row_tokens)
# A mark takes some 100 bytes.
_MOST_MARKS = 1 << 16


@dataclass(slots=True, eq=False)
class RoutedRequest:
    """A request in flight.

    keys      of its prompt; None where it has none that is known
    replica   that it was sent to; None before
    uncached  tokens of its prompt that the replica had to compute when it was sent
    answered  the first bytes of the answer have arrived
    """

    keys: PromptKeys | None
    replica: str | None = None
    uncached: int = 0
    answered: bool = False


@dataclass(slots=True)
class ReplicaView:
    """One replica as it is known here.

    index    its cache, by events
    requests in flight there
    sent     blocks of these requests' prompts
    marks    of prompts sent there, oldest first: beginnings of blocks that it may have
    served   requests sent there so far
    """

    index: BlockIndex = field(default_factory=BlockIndex)
    requests: set[RoutedRequest] = field(default_factory=set[RoutedRequest])
    sent: Counter[int] = field(default_factory=Counter[int])
    marks: OrderedDict[int, None] = field(default_factory=OrderedDict[int, None])
    served: int = 0


class Board:
    """All replicas; every method may be called from any thread."""

    def __init__(self, costs: ChoiceCosts = _COSTS) -> None:
        self._costs = costs
        self._lock = threading.Lock()
        self._replicas: dict[str, ReplicaView] = {}
        self._intake = Intake()

    def keep(self, names: Collection[str]) -> None:
        """Forget all replicas but these; one that is new begins with an empty cache."""
        with self._lock:
            for gone in self._replicas.keys() - set(names):
                del self._replicas[gone]
                self._intake.forget(gone)
            for name in names:
                self._replicas.setdefault(name, ReplicaView())

    def names(self) -> list[str]:
        """Return the replicas that are known."""
        with self._lock:
            return list(self._replicas)

    @contextmanager
    def index(self, name: str) -> Iterator[BlockIndex]:
        """Yield the cache index of a replica, to be changed; that of an unknown one is not kept."""
        with self._lock:
            view = self._replicas.get(name)
            yield BlockIndex() if view is None else view.index

    def cleared(self, name: str) -> None:
        """Note that a replica's cache was emptied, beginnings of blocks included."""
        with self._lock:
            if view := self._replicas.get(name):
                view.marks.clear()
                self._intake.forget(name)

    def place(
        self, routed: RoutedRequest, names: Sequence[str], *, avoid: Collection[str] = ()
    ) -> str:
        """Choose one of `names` for a request, and count it there.

        avoid  names that are taken only where there is no other
        Raises ValueError without names.
        """
        with self._lock:
            self._strike(routed)
            usable = [name for name in names if name not in avoid] or list(names)
            candidates = [self._candidate(name, routed.keys) for name in usable]
            tokens = 0 if routed.keys is None else len(routed.keys.tokens)
            chosen = choose(candidates, tokens, costs=self._costs)
            self._count(routed, chosen, tokens)
            return chosen.replica

    def answered(self, routed: RoutedRequest) -> None:
        """Note that an answer has begun, so that its prompt is computed."""
        routed.answered = True

    def done(self, routed: RoutedRequest) -> None:
        """Note that a request has ended."""
        with self._lock:
            self._strike(routed)

    def describe(self) -> dict[str, dict[str, int | bool]]:
        """Return what is known of each replica, in numbers, by name."""
        with self._lock:
            return {
                name: {
                    "requests": len(view.requests),
                    "waiting_tokens": _waiting(view),
                    "served": view.served,
                    "blocks": len(view.index),
                    "current": view.index.current,
                }
                for name, view in self._replicas.items()
            }

    # --- under the lock

    def _candidate(self, name: str, keys: PromptKeys | None) -> Candidate:
        view = self._replicas.setdefault(name, ReplicaView())
        return Candidate(
            name,
            matched_tokens=0 if keys is None else _matched(view, keys),
            waiting_tokens=_waiting(view),
            running=len(view.requests),
            intake_tokens=self._intake.of(name),
        )

    def _count(self, routed: RoutedRequest, chosen: Candidate, tokens: int) -> None:
        view = self._replicas[chosen.replica]
        routed.replica, routed.answered = chosen.replica, False
        routed.uncached = max(tokens - chosen.matched_tokens, 0)
        self._intake.note(chosen.replica, routed.uncached)
        view.requests.add(routed)
        view.served += 1
        if routed.keys is not None:
            view.sent.update(routed.keys.blocks)
            _remember(view, routed.keys)

    def _strike(self, routed: RoutedRequest) -> None:
        view = self._replicas.get(routed.replica or "")
        routed.replica = None
        if view is None or routed not in view.requests:
            return
        view.requests.remove(routed)
        for block in () if routed.keys is None else routed.keys.blocks:
            if view.sent[block] > 1:
                view.sent[block] -= 1
            else:
                del view.sent[block]


def _matched(view: ReplicaView, keys: PromptKeys) -> int:
    """Return how many tokens of a prompt are there or on their way, from its beginning on."""
    blocks = view.index.leading(keys.blocks)
    while blocks < len(keys.blocks) and keys.blocks[blocks] in view.sent:
        blocks += 1
    matched = blocks * keys.block_size
    for end, mark in keys.marks(blocks):
        if mark not in view.marks:
            break
        matched = end
    return matched


def _remember(view: ReplicaView, keys: PromptKeys) -> None:
    """Note the beginnings of the first block, which chats share, and of the last one."""
    for block in {0, len(keys.blocks)}:
        for _, mark in keys.marks(block):
            view.marks[mark] = None
            view.marks.move_to_end(mark)
    while len(view.marks) > _MOST_MARKS:
        view.marks.popitem(last=False)


def _waiting(view: ReplicaView) -> int:
    """Return the prompt tokens that are still to be computed there."""
    return sum(routed.uncached for routed in view.requests if not _is_computed(view, routed))


def _is_computed(view: ReplicaView, routed: RoutedRequest) -> bool:
    blocks = routed.keys.blocks if routed.keys is not None else None
    return routed.answered or bool(blocks and blocks[-1] in view.index)
