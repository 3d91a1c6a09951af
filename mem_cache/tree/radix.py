"""The tree over all sequences: which full pages and which resume points a prompt can reuse.

    match -> lock -> { insert, add_point }... -> unlock        one request
    evict_full, evict_swa                                      when a pool runs short

The tree owns references, never units: it takes one on every page, SWA page and state it adopts and
drops it on eviction. Which tokens are equal is always decided by comparing tokens.

What a request may count on: a lock keeps all pages up to the matched length, until an insertion
moves it. An extension may replace a *partial* page by a longer copy; the page then goes with its
last lock.

This is the face of `mem_cache/tree/core`, where the work is done, in numpy and exceptions.
"""

import ctypes
from collections import Counter, deque
from collections.abc import Iterator, Sequence

import numpy as np

from mem_cache.allocator import PageAllocator
from mem_cache.errors import IntegrityError
from mem_cache.spec import TreeSpec, div_ceil
from mem_cache.tree.arrays import TreeArrays
from mem_cache.tree.core.binding import CInsertion, CMatch, address, insertion_fault, library
from mem_cache.tree.handles import Insertion, Lock, Match, Point, PointKind
from mem_cache.tree.integrity import check_in_steps
from mem_cache.tree.namespaces import Namespaces
from mem_cache.tree.policy import PAGE_KINDS, POINT_KINDS, EvictionPolicy, Lru
from mem_cache.tree.span import Span, list_spans

POLICY_TICKS = 64  # requests between two looks of the policy at what became of the leaves


class ShadowRadixCache:
    """A radix tree over pages of tokens, with resume points. Knows integers only.

    states         of no capacity where the model has none; likewise `swa`, without windows
    replay_tokens  how far before F a recomputation must begin for window and state at F to be
                   exact; None never plans one
    policy         who goes first; plain LRU unless given
    log_removed    keep the ids of pages that leave, for `take_removed`
    Not for several threads.
    """

    def __init__(
        self,
        spec: TreeSpec,
        *,
        full: PageAllocator,
        swa: PageAllocator,
        states: PageAllocator,
        replay_tokens: int | None = None,
        policy: EvictionPolicy | None = None,
        log_removed: bool = False,
    ) -> None:
        self.spec = spec
        self.full, self.swa, self.states = full, swa, states
        self.policy: EvictionPolicy = policy or Lru()
        self.locks = 0
        self._replay = -1 if replay_tokens is None else replay_tokens
        self._log_removed = log_removed
        self._core = library()
        self._match = CMatch()
        self._insertion = CInsertion()
        self._match_address = ctypes.addressof(self._match)
        self._insertion_address = ctypes.addressof(self._insertion)
        self._path = np.zeros(full.capacity + 1, np.int32)
        self._path_address = address(self._path)
        self._window = np.zeros(max(1, spec.window_pages), np.int32)
        self._window_address = address(self._window)
        self._clear()

    def _clear(self) -> None:
        self.arrays = TreeArrays(
            self.spec,
            full=self.full,
            swa=self.swa,
            states=self.states,
            page_kinds=PAGE_KINDS,
            point_kinds=POINT_KINDS,
            end_kind=PointKind.REQUEST_END,
            replay=self._replay,
        )
        for kind in (PointKind.BRANCH, PointKind.BOUNDARY, PointKind.WAYPOINT):
            self.arrays.kind_after_use[kind] = PointKind.SHARED
        self.arrays.kind_after_use[PointKind.REQUEST_END :] = PointKind.PASSED
        self._tree = self.arrays.tree
        self._tree.log_removed = self._log_removed
        self._pointer = self.arrays.pointer
        self._names = Namespaces(self.arrays)
        self._policy_due = 0

    # --- sizes and counters

    @property
    def roots(self) -> dict[str, int]:
        """Index of each namespace's root."""
        return self._names.roots

    @property
    def tree_pages(self) -> int:
        """Full pages in the tree."""
        return self._tree.pages

    @property
    def points(self) -> int:
        """Resume points in the tree."""
        return self._tree.points

    @property
    def evictable_pages(self) -> int:
        """Full pages that no lock protects."""
        return self._tree.pages - self._tree.guarded

    @property
    def evicted_pages(self) -> int:
        """Full pages evicted so far."""
        return self._tree.evicted_pages

    @property
    def evicted_points(self) -> int:
        """Resume points evicted so far, by themselves or with their page."""
        return self._tree.evicted_points

    @property
    def returned_pages(self) -> int:
        """Whole pages of prompts computed again so far that were evicted before."""
        return self._tree.returned_pages

    def tokens_by_namespace(self) -> dict[str, int]:
        """Count the tokens that each namespace holds, where it holds any."""
        return self._names.tokens()

    # --- one request

    def match(self, tokens: np.ndarray, *, limit: int | None = None, namespace: str = "") -> Match:
        """Do what `peek` does, and count it as a request (`use`)."""
        match = self.peek(tokens, limit=limit, namespace=namespace)
        self.use(match)
        return match

    def peek(self, tokens: np.ndarray, *, limit: int | None = None, namespace: str = "") -> Match:
        """Find the longest run of `tokens` that any path has; change nothing.

        tokens  [n] int32
        limit   the run is cut to it; n - 1 unless given, so that one token is left to compute
        """
        tokens = np.ascontiguousarray(tokens, np.int32)
        length = len(tokens)
        limit = max(0, min(length, length - 1 if limit is None else limit))
        root = self.roots.get(namespace)
        if root is None or not limit:
            node = 0 if root is None else -1 - root
            return Match(0, self._path[:0].copy(), node, namespace, None, 0, 1, self._tree.tick + 1)
        # One token more is compared: the resume point behind it serves the limit as well.
        self._core.tree_match(
            self._pointer,
            root,
            address(tokens),
            min(length, limit + 1),
            limit,
            self._path_address,
            self._match_address,
        )
        found = self._match
        full, start = found.full_tokens, found.resume_tokens
        point: Point | None = None
        if found.point:
            point = self._point(found.point)
        elif not self.spec.has_points:
            start = full
        elif self._replay >= 0:
            start = max(0, full - self._replay)
        pages = self._path[: found.pages].copy()
        return Match(
            full_tokens=full,
            pages=pages,
            node=found.holder,
            namespace=namespace,
            point=point,
            start=start,
            turns=found.turns,
            tick=self._tree.tick + 1,
            point_evicted=bool(found.point_evicted),
        )

    def use(self, match: Match) -> None:
        """Count a request that starts as matched: the clock advances, and what it uses is newest.

        Nothing may have left the tree since `peek`, unless a lock protects what was matched.
        """
        self._follow_policy()
        point = 0 if match.point is None else match.point.id
        self._core.tree_use(self._pointer, match.node, point, match.turns)

    def _point(self, point: int) -> Point:
        arrays = self.arrays
        position = arrays.point_words["position"].item(point)
        count = self.spec.window_pages_at(position)
        window = tuple(arrays.windows[point, :count].tolist())
        state = arrays.point_words["state"].item(point)
        return Point(point, position, state, window, bool(arrays.exact[point]))

    def lock(self, match: Match) -> Lock:
        """Protect what was matched until `unlock`.

        Raises IntegrityError if the tree has let go of it since the match.
        """
        node = match.node if match.node > 0 else self._names.node(match.namespace)
        point, position = (0, 0) if match.point is None else (match.point.id, match.point.position)
        if self._core.tree_hold(self._pointer, node, point, position) < 0:
            raise IntegrityError(
                f"lock of {match.full_tokens} tokens, or of their resume point, evicted since"
            )
        self.locks += 1
        return Lock(node, point=point, turns=match.turns, tick=match.tick)

    def unlock(self, lock: Lock) -> None:
        """Let go of the node, and of the resume point if it is still pinned."""
        if lock.released:
            raise IntegrityError("a lock was released twice")
        self.unlock_point(lock)
        lock.released = True
        self.locks -= 1
        self._core.tree_unlock(self._pointer, lock.node)

    def unlock_point(self, lock: Lock) -> None:
        """Let go of the resume point only; doing it again does nothing."""
        point, lock.point = lock.point, 0
        if point:
            self._core.tree_unpin(self._pointer, point)

    def insert(
        self,
        tokens: np.ndarray,
        pages: np.ndarray,
        *,
        namespace: str = "",
        lock: Lock | None = None,
        ended: bool = False,
        output_from: int | None = None,
        copied_turns: int | None = None,
    ) -> Insertion:
        """Publish a sequence; the tree takes a reference on every page that it adopts.

        tokens  [n] int32
        pages   [ceil(n / page_size)] int32; the last one may be partial, and its owner may go on
                writing behind the n tokens
        lock    begin at its node instead of the top: pages before it are the tree's already; it
                moves to the page of the last token
        ended   the request ends with these tokens: a next turn may go on from here
        output_from  tokens from here on were sampled; all were given unless named
        copied_turns  turns that the sequence has had in the tree that it was copied from; None: it
                was computed for this one
        Where the tree has a page for the same tokens, its own stays; the caller drops its
        references on all whole pages and goes on with the pages returned.
        Raises IntegrityError, and changes nothing, if a page to adopt is free or in the tree.
        """
        tokens = np.ascontiguousarray(tokens, np.int32)
        ids = np.array(pages, np.int32)
        length = len(tokens)
        if len(ids) != div_ceil(length, self.spec.page_size):
            raise IntegrityError(f"{length} tokens cannot have {len(ids)} pages")
        job = self._insertion
        job.tokens, job.pages, job.length = address(tokens), address(ids), length
        job.from_node = self._names.node(namespace) if lock is None else lock.node
        job.locked, job.ended = lock is not None, ended
        job.turns, job.since = (1, self._tree.tick) if lock is None else (lock.turns, lock.tick)
        job.output_from = length if output_from is None else output_from
        job.copied = 0 if copied_turns is None else 1 + copied_turns
        fault = self._core.tree_insert(self._pointer, self._insertion_address)
        if fault < 0:
            raise insertion_fault(fault, self.full.name, self.full.pool)
        if lock is not None:
            lock.node, lock.turns = job.node, job.turns
        return Insertion(
            ids[: length // self.spec.page_size], job.node, job.new_tokens, job.first_new
        )

    def add_point(
        self,
        node: int,
        position: int,
        *,
        swa_pages: Sequence[int],
        state: int,
        exact: bool = False,
        kind: PointKind = PointKind.PROMPT_END,
        give: bool = False,
    ) -> bool:
        """Hang a resume point on the path to `node`; the tree takes references on its units.

        node       from an insertion of a sequence that reaches `position` at least
        swa_pages  ids for TreeSpec.window_pages_at(position), in order
        state      of this position; 0 where the model has none
        exact      it cannot serve `position - 1`; one that can replaces it, unless it is pinned
        give       the caller's own references go to the tree, which drops them if it takes nothing
        Returns False, and takes nothing, if these tokens have one already or are gone.
        """
        count = len(swa_pages)
        if count != self.spec.window_pages_at(position):
            raise IntegrityError(f"{count} SWA pages for the window at {position}")
        self._window[:count] = swa_pages
        add = self._core.point_give if give else self._core.point_add
        added = add(self._pointer, node, position, self._window_address, count, state, exact, kind)
        if added < 0:
            units = f"SWA pages {list(swa_pages)} or state {state}"
            raise IntegrityError(f"point at {position}: {units} are free, not there, or in use")
        return bool(added)

    # --- eviction

    def evict_full(self, until_free: int) -> bool:
        """Evict pages from the ends of unlocked leaves until so many are free.

        A page that a row refers to as well does not count until the row lets go. Returns False
        if that many cannot be had; what could be evicted is gone then.
        """
        return bool(self._core.tree_evict(self._pointer, until_free))

    def evict_swa(self, *, swa_pages: int = 0, states: int = 0) -> bool:
        """Drop unpinned resume points until so many units are free in both pools.

        Points and rows share SWA pages, so one point frees any number of them. Returns False if
        that many cannot be had; every unpinned point is gone then.
        """
        return bool(self._core.points_evict(self._pointer, swa_pages, states))

    def shrink(self, namespace: str, *, keep_tokens: int) -> bool:
        """Evict a namespace's own pages, oldest first, until it holds so many tokens at most.

        Returns False if locks protect more than that.
        """
        root = self.roots.get(namespace)
        if root is None:
            return True
        return bool(self._core.tree_evict_root(self._pointer, root, keep_tokens))

    def take_removed(self) -> np.ndarray:
        """Return the pages [n] int32 that left the tree since the last call, in order.

        Raises IntegrityError, and forgets them, if they are more than the pool has.
        """
        count, self._tree.removed_count = self._tree.removed_count, 0
        if count > len(self.arrays.removed):
            raise IntegrityError(f"{count} pages left since the removed ones were taken")
        return self.arrays.removed[:count].copy()

    def reset(self) -> None:
        """Forget everything, which is no eviction. Raises IntegrityError if anything is locked."""
        if self.locks:
            raise IntegrityError(f"reset while {self.locks} locks are held")
        evicted = self.evicted_pages, self.evicted_points
        self.evict_full(self.full.capacity + 1)  # points go with their pages
        self._tree.evicted_pages, self._tree.evicted_points = evicted
        self.arrays.evicted[:] = 0
        self._names.clear()

    def check(self, *, full: Counter[int], swa: Counter[int], states: Counter[int]) -> None:
        """Verify every invariant of tree, lists, locks and pools; for tests and idle times.

        full, swa, states  references that others than the tree hold, by unit
        Raises IntegrityError with the path to the fault.
        """
        deque(self.check_in_steps(full=full, swa=swa, states=states), maxlen=0)

    def check_in_steps(
        self, *, full: Counter[int], swa: Counter[int], states: Counter[int]
    ) -> Iterator[None]:
        """Do what `check` does, seconds of a large tree, and pause every 10 ms: for no change."""
        return check_in_steps(
            self.spec,
            self.arrays,
            self.roots,
            locks=self.locks,
            held=(full, swa, states),
            pools=(self.full, self.swa, self.states),
        )

    def spans(self, limit: int) -> tuple[list[Span], int]:
        """Return at most so many spans for people to look at, and how many were left out.

        The most recently used come first, each after the spans that lead to it.
        """
        return list_spans(self.arrays, self.roots, limit)

    # --- policy

    def _follow_policy(self) -> None:
        if self._tree.tick < self._policy_due:
            return
        self._policy_due = self._tree.tick + POLICY_TICKS
        arrays = self.arrays
        arrays.page_favour[:] = self.policy.page_favour(arrays.returns)
        arrays.point_favour[:] = self.policy.point_favour(arrays.returns, arrays.uses)
