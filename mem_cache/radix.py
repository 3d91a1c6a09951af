"""The tree over all sequences: which full pages and which resume points a prompt can reuse.

    match -> lock -> { insert, relock, add_point }... -> unlock        one request
    evict_full, evict_swa                                              when a pool runs short

The tree owns references, never units: it takes one on every page, SWA page and ring it adopts and
drops it on eviction. Which tokens are equal is always decided by comparing tokens.

What a request may count on: a lock keeps all whole pages up to the matched length. It does not
keep the id of a *partial* page, which an extension may replace by a longer copy: who copies from
one takes a reference until the copy has been launched.

Recency. `full_lru` holds unlocked nodes. One that has children cannot be evicted; met at the old
end, it leaves the list and comes back there when its last child goes, unless it was used in
between. So what stands at the old end is a leaf or is passed once: eviction never looks for one.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from mem_cache.allocator import PageAllocator
from mem_cache.errors import IntegrityError
from mem_cache.handles import Insertion, Lock, Match
from mem_cache.integrity import Pool, Tally, check_all
from mem_cache.lru import LruList
from mem_cache.node import Node, Point, Root, deepest_point, walk
from mem_cache.resume_point import ResumePoint
from mem_cache.spec import TreeSpec, div_ceil


class ShadowRadixCache:
    """A radix tree over pages of tokens, with resume points. Knows integers only.

    Not for several threads. Sizes (`tree_pages`, `points`, `nodes`) and counters
    (`evicted_pages`, `evicted_points`) are there to be read.
    """

    def __init__(
        self, spec: TreeSpec, *, full: PageAllocator, swa: PageAllocator, rings: PageAllocator
    ) -> None:
        self.spec = spec
        self.full = full
        self.swa = swa
        self.rings = rings
        self.roots: dict[str, Root] = {}
        self.full_lru: LruList[Node] = LruList()
        self.swa_lru: LruList[Point] = LruList()
        self.tree_pages = 0
        self.points = 0
        self.nodes = 0
        self.locks = 0
        self.pins = 0
        self.evicted_pages = 0
        self.evicted_points = 0

    def match(self, tokens: np.ndarray, *, limit: int | None = None, namespace: str = "") -> Match:
        """Find the longest run of `tokens` that any path has; change nothing but recency.

        tokens  [n] int32
        limit   the run is cut to it; n - 1 unless given, so that one token is left to compute
        """
        tokens = np.asarray(tokens, np.int32)
        limit = max(0, min(len(tokens), len(tokens) - 1 if limit is None else limit))
        root = self.roots.get(namespace) or Root(self.spec.page_size, namespace)
        # One token more is compared: the resume point behind it serves the limit as well.
        path, run = walk(root, tokens[: limit + 1])
        full_tokens = min(run, limit)
        holder = path[-1] if path[-1].start < full_tokens or len(path) == 1 else path[-2]
        pages = np.concatenate([node.pages for node in path])
        point = deepest_point(path, full_tokens)
        self._touch_path(holder, root)
        if point is not None and point.swa_lock_ref == 0:
            self.swa_lru.touch(point)
        return Match(
            full_tokens=full_tokens,
            pages=pages[: div_ceil(full_tokens, self.spec.page_size)],
            node=holder,
            point=point,
            resume_tokens=0 if point is None else min(point.position, full_tokens),
        )

    def lock(self, match: Match) -> Lock:
        """Protect what was matched until `unlock`; the cost does not grow with depth.

        Raises IntegrityError if the tree has let go of it since the match.
        """
        node, point = match.node, match.point
        if isinstance(node, Root):
            node = self.roots.setdefault(node.namespace, node)
        elif not node.in_tree or match.full_tokens > node.end:
            raise IntegrityError(f"lock of {match.full_tokens} tokens that were evicted since")
        if point is not None and not point.alive:
            raise IntegrityError(f"lock of resume point {point.position}, evicted since")
        self._hold(node)
        self.locks += 1
        if point is not None:
            self._hold(point.node)
            if point.swa_lock_ref == 0:
                self.swa_lru.remove(point)
            point.swa_lock_ref += 1
            self.pins += 1
        return Lock(node, point, match.full_tokens)

    def unlock(self, lock: Lock) -> None:
        """Let go of the node, and of the resume point if it is still pinned."""
        if lock.released:
            raise IntegrityError("a lock was released twice")
        self.unlock_point(lock)
        lock.released = True
        self.locks -= 1
        self._release(lock.node)

    def unlock_point(self, lock: Lock) -> None:
        """Let go of the resume point only; doing it again does nothing."""
        point = lock.point
        if point is None:
            return
        lock.point = None
        self.pins -= 1
        point.swa_lock_ref -= 1
        if point.swa_lock_ref == 0:
            self.swa_lru.push_newest(point)
        self._release(point.node)

    def relock(self, lock: Lock, node: Node) -> None:
        """Move a lock to the node that an insertion with this lock has just returned."""
        if lock.released or not node.in_tree:
            raise IntegrityError("only a lock in force can move, and only to a node in the tree")
        if isinstance(node, Root):
            node = self.roots.setdefault(node.namespace, node)
        self._hold(node)
        self._release(lock.node)
        lock.node = node
        lock.known_tokens = node.start

    def insert(
        self,
        tokens: np.ndarray,
        pages: np.ndarray,
        *,
        namespace: str = "",
        lock: Lock | None = None,
    ) -> Insertion:
        """Publish a sequence; the tree takes a reference on every page that it adopts.

        tokens  [n] int32
        pages   [ceil(n / page_size)] int32; the last one may be partial, and its owner may go on
                writing behind the n tokens
        lock    begin at its node instead of the top: pages before it are the tree's already
        Where the tree has a page for the same tokens, its own stays; the caller drops its
        references on all whole pages and goes on with the pages returned.
        Raises IntegrityError, and changes nothing, if a page to adopt is free.
        """
        tokens = np.asarray(tokens, np.int32)
        pages = np.asarray(pages, np.int32)
        if len(pages) != div_ceil(len(tokens), self.spec.page_size):
            raise IntegrityError(f"{len(tokens)} tokens cannot have {len(pages)} pages")
        top = self.roots.get(namespace) or Root(self.spec.page_size, namespace)
        path, matched = walk(top if lock is None else lock.known_node(len(tokens)), tokens)
        ids = self._tree_ids(path, matched, pages[: len(tokens) // self.spec.page_size])
        last = path[-1]
        if matched < len(tokens):
            self.full.incref(pages[matched // self.spec.page_size :])
            if isinstance(last, Root):
                last = self.roots.setdefault(last.namespace, last)
            last = self._grow(last, tokens, pages, matched=matched, lock=lock)
        self._touch_path(last, path[0])
        return Insertion(ids, last, len(tokens) - matched)

    def add_point(
        self,
        node: Node,
        position: int,
        *,
        swa_pages: Sequence[int],
        ring: int,
        exact: bool = False,
    ) -> bool:
        """Hang a resume point on the path to `node`; the tree takes references on its units.

        node       from an insertion of a sequence that reaches `position` at least
        swa_pages  ids for `TreeSpec.window_page_range(position)`, in order
        exact      it cannot serve `position - 1`; one that can replaces it, unless it is pinned
        Returns False, and takes nothing, if these tokens have one already or are gone.
        """
        if len(swa_pages) != len(self.spec.window_page_range(position)):
            raise IntegrityError(f"{len(swa_pages)} SWA pages for the window at {position}")
        holder: Node | None = node if node.in_tree else None
        while holder is not None and position <= holder.start:
            holder = holder.parent
        if holder is None or not holder.start < position <= holder.end:
            return False
        known = holder.point_at(position)
        if known is not None and (exact or not known.exact or known.swa_lock_ref):
            return False
        self.swa.incref(swa_pages)
        try:
            self.rings.incref((ring,))
        except IntegrityError:
            self.swa.decref(swa_pages)
            raise
        if known is not None:
            known.node.remove_point(known)
            self._free_point(known)
        point = ResumePoint(
            position, holder, swa_pages=tuple(map(int, swa_pages)), ring=int(ring), exact=exact
        )
        holder.add_point(point)
        self.swa_lru.push_newest(point)
        self.points += 1
        return True

    def evict_full(self, until_free: int) -> bool:
        """Trim pages from the ends of unlocked leaves, oldest first, until so many are free.

        A page that a row refers to as well does not count until the row lets go. Returns False
        if that many cannot be had; what could be evicted is gone then.
        """
        while self.full.free < until_free:
            node = self.full_lru.oldest
            if node is None:
                return False
            if len(node.children):
                self.full_lru.remove(node)
            else:
                self._trim(node, until_free - self.full.free)
        return True

    def evict_swa(self, *, swa_pages: int = 0, rings: int = 0) -> bool:
        """Drop unpinned resume points, oldest first, until so many units are free in both pools.

        Points and rows share SWA pages, so one point frees any number of them. Returns False if
        that many cannot be had; every unpinned point is gone then.
        """
        while self.swa.free < swa_pages or self.rings.free < rings:
            point = self.swa_lru.oldest
            if point is None:
                return False
            point.node.remove_point(point)
            self._free_point(point)
            self.evicted_points += 1
        return True

    def reset(self) -> None:
        """Forget everything. Raises IntegrityError, and forgets nothing, if anything is locked."""
        if self.locks:
            raise IntegrityError(f"reset while {self.locks} locks are held")
        for node in self._all_nodes():
            self.full.decref(node.pages)
            for point in node.points:
                self._free_point(point)
            node.parent = None
        self.roots = {}
        self.full_lru = LruList()
        self.tree_pages = self.nodes = 0

    def check(self, *, full: Counter[int], swa: Counter[int], rings: Counter[int]) -> None:
        """Verify every invariant of tree, lists, locks and pools; for tests and idle times.

        full, swa, rings  references that others than the tree hold, by unit
        Raises IntegrityError with the path to the fault.
        """
        check_all(
            self.spec,
            self.roots,
            full_lru=self.full_lru,
            swa_lru=self.swa_lru,
            tally=Tally(self.nodes, self.tree_pages, self.points, self.locks, self.pins),
            full=Pool(self.full, full),
            swa=Pool(self.swa, swa),
            rings=Pool(self.rings, rings),
        )

    def evictable_pages(self) -> int:
        """Count pages that no lock protects. Walks the whole tree."""
        protected: set[Node] = set()
        total = 0
        for node in self._all_nodes():
            total += len(node.pages)
            above: Node | None = node if node.full_lock_ref else None
            while above is not None and above not in protected:
                protected.add(above)
                above = above.parent
        return total - sum(len(node.pages) for node in protected)

    def tokens_by_namespace(self) -> dict[str, int]:
        """Count the tokens of each namespace. Walks the whole tree."""
        return {
            name: sum(len(node.tokens) for node in root.depth_first())
            for name, root in self.roots.items()
        }

    def _all_nodes(self) -> list[Node]:
        return [node for root in self.roots.values() for node in root.depth_first()]

    def _tree_ids(self, path: list[Node], matched: int, pages: np.ndarray) -> np.ndarray:
        """Return `pages` with the tree's ids where the path has the whole page."""
        ids, page_size = pages.copy(), self.spec.page_size
        for node in path[1:]:
            first = node.start // page_size
            whole = min(matched, node.end) // page_size
            ids[first:whole] = node.pages[: whole - first]
        return ids

    def _grow(
        self, last: Node, tokens: np.ndarray, pages: np.ndarray, *, matched: int, lock: Lock | None
    ) -> Node:
        """Add `tokens[matched:]` behind the last node that was met; return the node of the end."""
        page_size, length = self.spec.page_size, len(tokens)
        parent, start = last, matched
        if matched < last.end:
            start -= matched % page_size
            above = self._split(last, start) if start > last.start else last.parent
            assert above is not None, "a root has no span to part from"
            parent = above
        elif not last.is_root and not len(last.children):
            # Others who hold this leaf would hold what is appended, too: they are spared that,
            # but for the page that must be filled before a child can begin.
            start = length
            if last.full_lock_ref > (0 if lock is None else lock.holds_on(last)):
                start = min(length, div_ceil(matched, page_size) * page_size)
            self._extend(last, tokens[matched:start], pages, until=start)
            if start == length:
                return last
        child = Node(page_size, start, tokens[start:].copy(), pages[start // page_size :].copy())
        parent.adopt(child)
        self.full_lru.push_newest(child)
        self.nodes += 1
        self.tree_pages += len(child.pages)
        return child

    def _extend(self, leaf: Node, tokens: np.ndarray, pages: np.ndarray, *, until: int) -> None:
        if not len(tokens):
            return
        page_size, before = self.spec.page_size, len(leaf.pages)
        replaced = leaf.extend(tokens, pages[leaf.end // page_size : div_ceil(until, page_size)])
        self.tree_pages += len(leaf.pages) - before
        if replaced:
            self.full.decref((replaced,))

    def _split(self, node: Node, position: int) -> Node:
        locked = node.full_lock_ref > 0
        upper = node.split(position)
        self.nodes += 1
        if upper.full_lock_ref == 0:
            self.full_lru.push_newest(upper)
        if locked and node.full_lock_ref == 0:
            self.full_lru.push_newest(node)
        return upper

    def _trim(self, leaf: Node, count: int) -> None:
        parent = leaf.parent
        pages, points = leaf.trim(max(0, len(leaf.pages) - count))
        for point in points:
            self._free_point(point)
        self.full.decref(pages)
        self.tree_pages -= len(pages)
        self.evicted_pages += len(pages)
        self.evicted_points += len(points)
        if leaf.in_tree or parent is None:
            return
        self.full_lru.remove(leaf)
        self.nodes -= 1
        if len(parent.children) or parent.full_lock_ref:
            return
        if isinstance(parent, Root):
            del self.roots[parent.namespace]
        elif not parent.linked:
            self.full_lru.push_oldest(parent)

    def _free_point(self, point: Point) -> None:
        self.swa_lru.remove(point)
        point.alive = False
        self.swa.decref(point.swa_pages)
        self.rings.decref((point.ring,))
        self.points -= 1

    def _touch_path(self, node: Node | None, top: Node) -> None:
        """Make a node and those above it, up to `top`, the most recent; the uppermost most."""
        while node is not None and node is not top:
            if node.full_lock_ref == 0:
                self.full_lru.touch(node)
            node = node.parent

    def _hold(self, node: Node) -> None:
        if node.linked:
            self.full_lru.remove(node)
        node.full_lock_ref += 1

    def _release(self, node: Node) -> None:
        node.full_lock_ref -= 1
        if node.full_lock_ref:
            return
        if not isinstance(node, Root):
            self.full_lru.push_newest(node)
        elif not len(node.children):
            del self.roots[node.namespace]
