"""Copies cached prefixes from one replica to another one where a request needs them.

A request is admitted as from a hit. Just before, the prefix that another replica has is copied:
full pages, and the window and state of the resume point. All of it happens in one turn:

    admit   the giver's nodes are locked; the taker allocates units and publishes them in its tree
    launch  one exchange copies all units, before anything else of the step; the locks are released

So nothing is held from one turn to the next, whatever ends a request. A step copies a bounded
number of bytes. A longer prefix is copied in pieces of whole pages, in as many steps. Its request
waits until the last one; its pieces are ordinary pages of the tree.

Where there is no room for a copy, the prefix is computed again, and counted as such.

The giver's copy is evicted first, if it is no more than this prefix: its request goes on in the
taker, and so will the next turn.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mem_cache.spec import div_ceil
from mem_cache.tree.duplicates import cool
from mem_cache.tree.handles import Lock, Match
from runtime.scheduler.plan_builder import told_copies
from runtime.scheduler.received_prefix import Prefix, receive
from runtime.scheduler.request import Request
from runtime.scheduler.residency import Residency
from runtime.scheduler.row_units import Copies
from runtime.scheduler.settings import CopyLimits
from runtime.wire.arrays import INT32, packed
from runtime.wire.step import Exchange, UnitTransfer

__all__ = ["Brought", "PrefixCopies", "copied_cost"]

# What copying costs, as if it were computed tokens: a fiftieth of them, and a little for the window
# and the state. A GPU computes a token of V4-Flash in 44 us, and copies its 3.9 kB in less than
# 0.1 us; ranks on a CPU, in 200 us and 4 us.
TOKENS_PER_COMPUTED = 50
COPY_TOKENS = 32


def copied_cost(tokens: int) -> int:
    """Return what it costs to get so many tokens of a prefix from another replica."""
    return min(tokens, COPY_TOKENS + div_ceil(tokens, TOKENS_PER_COMPUTED))


class Brought(NamedTuple):
    """What a request can start from now.

    match      in its own replica
    elsewhere  tokens that another one has, and that are computed again
    """

    match: Match
    elsewhere: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """What is copied in one step of what a giver has; the point goes with the last piece."""

    prefix: Prefix
    bytes: int
    is_last: bool


@dataclass(slots=True)
class _Step:
    """What the next step copies.

    early     copies of replicas that take part, which were due before
    held      what givers have locked; those whose last piece this is are named with their match
    arriving  kind and number of the units of each replica that are written
    """

    early: dict[int, Copies] = field(default_factory=dict[int, Copies])
    transfers: list[UnitTransfer] = field(default_factory=list[UnitTransfer])
    held: list[tuple[Residency, Lock, Match | None]] = field(
        default_factory=list[tuple[Residency, Lock, Match | None]]
    )
    arriving: list[set[tuple[int, int]]] = field(default_factory=list[set[tuple[int, int]]])
    bytes: int = 0


class PrefixCopies:
    """Copies between the replicas of one scheduler, numbered as their ranks."""

    def __init__(self, residencies: Sequence[Residency], limits: CopyLimits) -> None:
        self._residencies = residencies
        self._limits = limits
        self._step = self._new_step()

    def _new_step(self) -> _Step:
        return _Step(arriving=[set() for _ in self._residencies])

    def bring(
        self, request: Request, match: Match, reserve_pages: int, *, to: int
    ) -> Brought | None:
        """Copy what another replica has of a waiting request beyond `match`, if that pays.

        match          what the request's own replica has; nothing has left its tree since
        reserve_pages  that must stay free besides those of the request
        to             its replica

        Returns None if a step must be launched before more of it can be copied. `Request.copied`
        counts by how much later the request starts.
        """
        giver, theirs = self._most(request, to)
        if theirs is None or theirs.start <= match.start:
            return Brought(match, 0)
        gain = theirs.start - match.start
        lost = match.full_tokens < request.copied_to
        if lost or copied_cost(gain) >= gain:
            return Brought(match, gain)
        piece = self._piece(theirs, match)
        if piece is None:
            return None
        if not self._copy(request, match, (giver, to), piece, theirs, reserve_pages):
            return Brought(match, gain)
        found = self._residencies[to].match(request)
        request.copied += max(0, found.start - match.start)
        request.copied_to = 0 if piece.is_last else found.full_tokens
        return Brought(found, 0) if piece.is_last else None

    def _most(self, request: Request, to: int) -> tuple[int, Match | None]:
        """Return which other replica has most of a request in its tree, and what it has.

        What is only being copied there cannot be copied on yet.
        """
        best: tuple[int, Match | None] = (to, None)
        for rank, residency in enumerate(self._residencies):
            if rank == to:
                continue
            match = residency.match(request)
            arriving = self._step.arriving[rank]
            if arriving and not arriving.isdisjoint(_units(match)):
                continue
            if best[1] is None or match.start > best[1].start:
                best = (rank, match)
        return best

    def _piece(self, theirs: Match, match: Match) -> _Piece | None:
        """Return how much of a prefix this step can copy; None: nothing any more."""
        limits, page, point = self._limits, self._residencies[0].spec.page_size, theirs.point
        first, turns = match.full_tokens // page, theirs.turns - 1
        count = max(0, div_ceil(theirs.full_tokens, page) - first)
        left = limits.step_bytes - self._step.bytes
        least = 0 if self._step.bytes else 1
        whole = count * limits.page_bytes
        if point is not None:
            whole += limits.of_point(len(point.swa_pages))
        if whole <= left or (least and count <= 1):
            prefix = Prefix(theirs.pages, theirs.full_tokens, point, turns)
            return _Piece(prefix, whole, True)
        pages = min(count - 1, max(least, left // limits.page_bytes))
        if pages < 1:
            return None
        prefix = Prefix(theirs.pages, (first + pages) * page, None, turns)
        return _Piece(prefix, pages * limits.page_bytes, False)

    def _copy(
        self,
        request: Request,
        match: Match,
        ends: tuple[int, int],
        piece: _Piece,
        theirs: Match,
        reserve_pages: int,
    ) -> bool:
        """Lock what is copied, and publish it where it goes; False where there is no room.

        ends  giver and taker
        """
        step, (giver, taker) = self._step, ends
        source, here = self._residencies[giver], self._residencies[taker]
        lock = source.lend(theirs)
        if lock is None:
            return False
        received = receive(here, request, match, piece.prefix, reserve_pages=reserve_pages)
        if received is None:
            source.take_back(lock)
            return False
        for rank in ends:
            # What is due already may fill a source, or have been due for a target's last owner.
            if rank not in step.early:
                step.early[rank] = self._residencies[rank].take_copies()
        if piece.is_last:
            source.cache.use(theirs)
        step.held.append((source, lock, theirs if piece.is_last else None))
        kinds = (received.pages, received.swa_pages, received.states)
        for kind, pairs in enumerate(kinds):
            step.arriving[taker].update((kind, target) for _, target in pairs)
        step.bytes += piece.bytes
        step.transfers.append(
            UnitTransfer(giver, taker, *(packed(pairs, INT32) for pairs in kinds))
        )
        return True

    def take(self, step: int) -> Exchange | None:
        """Return what the next step copies, which has this number; None: nothing."""
        if not self._step.transfers:
            return None
        early = [
            told_copies(self._step.early.get(rank, Copies()))
            for rank in range(len(self._residencies))
        ]
        return Exchange(step, early, self._step.transfers)

    def launched(self) -> None:
        """Let go of what the step just launched copies."""
        for source, lock, match in self._step.held:
            source.take_back(lock)
            if match is not None:
                cool(source.cache, match)
        self._step = self._new_step()


def _units(match: Match) -> Iterator[tuple[int, int]]:
    """Yield kind and number of all units that would be copied of a match."""
    yield from ((0, page) for page in match.pages.tolist())
    if match.point is not None:
        yield from ((1, page) for page in match.point.swa_pages)
        yield (2, match.point.state)
