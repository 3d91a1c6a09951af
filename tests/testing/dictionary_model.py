"""A tree of prefixes as a dictionary, and a rig that runs the real tree against it.

Every prefix of every sequence gets a number of its own. Units hold such numbers instead of bytes:
a position of a full page or of an SWA page holds the prefix that ends with it, a state the prefix
it was computed from. So a test sees at once whether anything reused belongs to other tokens.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from mem_cache.allocator import PageAllocator
from mem_cache.errors import OutOfPages
from mem_cache.spec import TreeSpec, div_ceil
from mem_cache.tree.aside import below, set_aside
from mem_cache.tree.handles import Insertion, Match, PointKind
from mem_cache.tree.policy import EvictionPolicy
from mem_cache.tree.radix import ShadowRadixCache
from tests.testing.match_checks import check_match
from tests.testing.prefixes import Prefixes, Row, read_prefixes
from tests.testing.tree_view import check_superseded, end_of, full_pages


class Rig:
    """The real tree, the model, and rows that use them by the rules; checks as it goes.

    reverse_numbers  number nodes and points from their last number on, so that none is by chance
             that of its unit
    points   prefixes that have a resume point, and whether it is an exact one
    fail_in  the allocation that fails, counted from now; 0 for none
    """

    def __init__(
        self,
        spec: TreeSpec,
        *,
        full: int,
        swa: int,
        states: int,
        replay_tokens: int | None = None,
        policy: EvictionPolicy | None = None,
        reverse_numbers: bool = True,
    ) -> None:
        self.spec, self.replay_tokens = spec, replay_tokens
        self.full = PageAllocator("full", full)
        self.swa = PageAllocator("swa", swa)
        self.states = PageAllocator("rings", states)
        self.cache = ShadowRadixCache(
            spec,
            full=self.full,
            swa=self.swa,
            states=self.states,
            replay_tokens=replay_tokens,
            policy=policy,
            log_removed=True,
        )
        if reverse_numbers:
            for ids in (self.cache.arrays.node_ids, self.cache.arrays.point_ids):
                ids.decref(ids.alloc(ids.capacity)[::-1])
        self.prefixes = Prefixes()
        self.published: set[int] = set()
        self.points: dict[int, bool] = {}
        self.rows: list[Row] = []
        self.fail_in = 0
        self.page_content: dict[int, list[int]] = {}
        self.swa_content: dict[int, dict[int, int]] = {}
        self.state_content: dict[int, int] = {}
        self._tree_pages: set[int] = set()

    def match(
        self, tokens: Sequence[int], *, limit: int | None = None, namespace: str = ""
    ) -> Match:
        """Match, and compare with what the dictionary says."""
        array = np.array(tokens, np.int32)
        match = self.cache.match(array, limit=limit, namespace=namespace)
        cut = len(tokens) - 1 if limit is None else limit
        ids = self.prefixes.ids(namespace, tokens)
        full = max((k for k in range(1, cut + 1) if ids[k] in self.published), default=0)
        assert match.full_tokens == full
        if full:
            assert self.cache.arrays.unit[match.node] == match.pages[-1]
            assert end_of(self.cache, match.node) >= full
        else:
            assert match.node <= 0
        check_match(self, match, ids)
        return match

    def start(self, tokens: Sequence[int], *, namespace: str = "") -> Row | None:
        """Start a row: match, lock, copy the partial page, compute the rest. None if no room."""
        match = self.match(tokens, namespace=namespace)
        page, full = self.spec.page_size, match.full_tokens
        known = [int(token) for token in tokens[:full]]
        row = Row(
            namespace,
            self.cache.lock(match),
            prompt_tokens=len(tokens),
            tokens=known,
            ids=self.prefixes.ids(namespace, known),
            table=match.pages.tolist(),
            published=full,
        )
        self.rows.append(row)
        if match.point is not None:
            self._share_window(row, match)
        if full % page:
            source = row.table.pop()
            if not self._add_page(row):
                return None
            self.page_content[row.table[-1]][: full % page] = row.ids[full - full % page + 1 :]
            assert row.ids[full] == self.page_content[source][full % page - 1]
        return row if self.compute(row, tokens[full:]) else None

    def begin(self, tokens: Sequence[int], *, namespace: str = "") -> Row:
        """Start a row that there must be room for."""
        row = self.start(tokens, namespace=namespace)
        assert row is not None
        return row

    def compute(self, row: Row, tokens: Sequence[int]) -> bool:
        """Append tokens to a row; it is aborted, and False returned, if there is no room."""
        page = self.spec.page_size
        for token, number in zip(tokens, self.prefixes.below(row.ids[-1], tokens)[1:], strict=True):
            position = len(row.tokens)
            if position % page == 0 and not self._add_page(row):
                return False
            row.tokens.append(int(token))
            row.ids.append(number)
            self.page_content[row.table[-1]][position % page] = number
        return True

    def publish(self, row: Row, *, use_lock: bool = True, ended: bool = False) -> None:
        """Insert all that the row has, and take over the tree's pages.

        use_lock  False inserts from the top first; beginning at the lock must find all of it
        """
        if not use_lock:
            self._insert(row, use_lock=False, ended=False)
        found = self._insert(row, use_lock=True, ended=ended)
        assert row.lock.node == found.node
        for index, page in enumerate(found.pages.tolist()):
            if index in row.own:
                self.full.decref((row.table[index],))
                row.own.discard(index)
            else:
                assert row.table[index] == page
            row.table[index] = page
        row.published = len(row.tokens)

    def _insert(self, row: Row, *, use_lock: bool, ended: bool) -> Insertion:
        count, page = len(row.tokens), self.spec.page_size
        before = max(k for k in range(count + 1) if k == 0 or row.ids[k] in self.published)
        found = self.cache.insert(
            np.array(row.tokens, np.int32),
            np.array(row.table, np.int32),
            namespace=row.namespace,
            lock=row.lock if use_lock else None,
            ended=ended,
            output_from=row.prompt_tokens,
        )
        assert found.new_tokens == count - before
        assert end_of(self.cache, found.node) >= count
        assert before // page <= found.first_new <= div_ceil(count, page)
        assert len(found.pages) == count // page
        self.published.update(row.ids[1:])
        self.sync_removed()
        return found

    def add_point(
        self,
        row: Row,
        position: int,
        *,
        exact: bool = False,
        kind: PointKind = PointKind.PROMPT_END,
        give: bool = False,
    ) -> bool | None:
        """Give the row's published part a resume point. None if there is no room for it.

        give  hand the references over instead of dropping them
        """
        size, slots = self.spec.swa_page_size, self.spec.window_pages
        last = (position - 1) // size
        for number in [n for n in row.window if n <= last - slots]:
            self.swa.decref((row.window.pop(number),))
        units: list[int] = []
        for slot in range(self.spec.window_pages_at(position)):
            number = last - (last - slot) % slots
            whole = (number + 1) * size <= position
            unit = row.window.get(number) if whole else None
            if unit is not None:
                self.swa.incref((unit,))
            elif (unit := self._try_alloc(self.swa)) is not None:
                self.swa_content[unit] = row.window_page(self.spec, number, position)
                if whole:
                    self.swa.incref((unit,))
                    row.window[number] = unit
            if unit is None:
                break
            units.append(unit)
        else:
            state = self._try_alloc(self.states) if self.spec.has_state else 0
            if state is not None:
                return self._offer(row, position, units, state, exact=exact, kind=kind, give=give)
        self.swa.decref(units)
        return None

    def complete(self, tokens: Sequence[int], *points: int, namespace: str = "") -> list[int]:
        """Run a whole request and leave it in the tree with resume points; return its pages."""
        row = self.begin(tokens, namespace=namespace)
        self.publish(row)
        for position in points:
            assert self.add_point(row, position)
        self.finish(row)
        return row.table

    def finish(self, row: Row) -> None:
        """Let a row go, with whatever it had not published."""
        self.rows.remove(row)
        self.cache.unlock(row.lock)
        self.sync_removed()
        self.full.decref([row.table[index] for index in sorted(row.own)])
        self.swa.decref(list(row.window.values()))

    def evict_full(self, until_free: int) -> bool:
        """Evict pages; verify that it is neither more nor less than was asked for."""
        before = self.full.free
        done = self.cache.evict_full(until_free)
        if done:
            assert self.full.free == max(before, until_free)
        else:
            assert self.full.free < until_free
            assert self.cache.evictable_pages == 0
        self._learn_evictions()
        return done

    def evict_swa(self, *, swa_pages: int = 0, states: int = 0) -> bool:
        """Drop resume points; verify that none is left if it was not enough."""
        done = self.cache.evict_swa(swa_pages=swa_pages, states=states)
        assert done == (self.swa.free >= swa_pages and self.states.free >= states)
        pinned = {row.lock.point for row in self.rows if row.lock.point}
        assert done or self.cache.points == len(pinned)
        self._learn_evictions()
        return done

    def shrink(self, namespace: str, keep_tokens: int) -> bool:
        """Cut a namespace down; verify that others keep all, and it what need not go."""
        before, arrays = self.cache.tokens_by_namespace(), self.cache.arrays
        lengths_before = arrays.page("length")[arrays.node_of]
        done = self.cache.shrink(namespace, keep_tokens=keep_tokens)
        after = self.cache.tokens_by_namespace()
        mine = after.get(namespace, 0)
        assert {**before, namespace: mine} == {**after, namespace: mine}
        assert done == (mine <= keep_tokens)
        removed = self.sync_removed()
        lengths = lengths_before[removed]
        assert mine + lengths.sum() == before.get(namespace, 0)
        assert not len(removed) or mine + lengths[-1] > keep_tokens
        if not done:
            root = self.cache.roots[namespace]
            inside = np.flatnonzero(self.cache.arrays.page("parent"))
            inside = inside[self.cache.arrays.page("root")[inside] == root]
            assert (self.cache.arrays.page("guards")[inside] > 0).all()
        self._learn_evictions()
        return done

    def set_aside(self, tokens: Sequence[int], share: int, *, namespace: str = "") -> None:
        """Distrust one of the pages that `tokens` match; verify that it goes with all below it."""
        page = self.spec.page_size
        match = self.match(tokens, limit=len(tokens) * share // 8, namespace=namespace)
        if not match.full_tokens:
            return
        gone = set(below(self.cache, match.node))
        for row in list(self.rows):
            held = {row.lock.node, int(self.cache.arrays.point("holder")[row.lock.point])}
            if held & gone:
                self.finish(row)
        start = (match.full_tokens - 1) // page * page
        number = self.prefixes.ids(namespace, tokens)[start + 1 : match.full_tokens + 1][-1]
        set_aside(self.cache, match.node)
        before = set(self.published)
        self._learn_evictions()
        lost = before - self.published
        assert number in lost or self.cache.peek(
            np.array(tokens, np.int32), limit=match.full_tokens, namespace=namespace
        ).node not in (0, match.node)

    def reset(self) -> None:
        """Forget everything, on both sides."""
        self.cache.reset()
        self.sync_removed()
        self.published.clear()
        self.points.clear()

    def check(self) -> None:
        """Verify the tree's own invariants, its content, and all references."""
        full = Counter(row.table[index] for row in self.rows for index in row.own)
        swa = Counter(unit for row in self.rows for unit in row.window.values())
        self.cache.check(full=full, swa=swa, states=Counter())
        assert self._tree_content() == (self.published, self.points)
        assert self._tree_pages == set(full_pages(self.cache))
        assert self.cache.tree_pages == len(self._tree_pages)
        check_superseded(self.cache)
        assert sum(self.cache.tokens_by_namespace().values()) >= len(self.published)
        for row in self.rows:
            assert all(self.full.references(page) for page in row.table)
            for position, number in enumerate(row.ids[1:]):
                page = row.table[position // self.spec.page_size]
                assert self.page_content[page][position % self.spec.page_size] == number

    def _offer(
        self,
        row: Row,
        position: int,
        units: list[int],
        state: int,
        *,
        exact: bool,
        kind: PointKind,
        give: bool,
    ) -> bool:
        number = row.ids[position]
        if state:
            self.state_content[state] = number
        known = self.points.get(number)
        held = {row.lock.point for row in self.rows}
        _, points = read_prefixes(self.cache, self.prefixes)
        pinned = {number for number, point in points.items() if point in held}
        assert self.cache.arrays.tree.pins_held == sum(r.lock.point > 0 for r in self.rows)
        wanted = known is None or (known and not exact and number not in pinned)
        wanted = wanted and self.spec.has_points
        added = self.cache.add_point(
            row.lock.node, position, swa_pages=units, state=state, exact=exact, kind=kind, give=give
        )
        assert added == wanted
        if added:
            self.points[number] = exact
        if not give:
            self.swa.decref(units)
            self.states.decref([state] if state else [])
        return added

    def _share_window(self, row: Row, match: Match) -> None:
        assert match.point is not None
        size, slots = self.spec.swa_page_size, self.spec.window_pages
        last = (match.point.position - 1) // size
        for slot, unit in enumerate(match.point.swa_pages):
            number = last - (last - slot) % slots
            if (number + 1) * size <= match.start:
                self.swa.incref((unit,))
                row.window[number] = unit

    def _add_page(self, row: Row) -> bool:
        hopeless = self.fail_in == 1
        page = self._try_alloc(self.full)
        if page is None and not hopeless and self.evict_full(1):
            page = self._try_alloc(self.full)
        if page is None:
            self.finish(row)
            return False
        self.page_content[page] = [-1] * self.spec.page_size
        row.own.add(len(row.table))
        row.table.append(page)
        return True

    def _try_alloc(self, pool: PageAllocator) -> int | None:
        failing, self.fail_in = self.fail_in == 1, max(0, self.fail_in - 1)
        try:
            return None if failing else int(pool.alloc(1)[0])
        except OutOfPages:
            return None

    def sync_removed(self) -> np.ndarray:
        """Take the pages [n] int32 that left; they must be those that are not there any more."""
        removed, now = self.cache.take_removed(), set(full_pages(self.cache))
        assert sorted(removed.tolist()) == sorted(self._tree_pages - now)
        self._tree_pages = now
        return removed

    def _learn_evictions(self) -> None:
        self.sync_removed()
        published, points = self._tree_content()
        assert published <= self.published
        assert points.items() <= self.points.items()
        for row in self.rows:
            assert published.issuperset(row.ids[1 : row.published + 1])
        self.published, self.points = published, points

    def _tree_content(self) -> tuple[set[int], dict[int, bool]]:
        published, points = read_prefixes(self.cache, self.prefixes)
        exact, states = self.cache.arrays.exact, self.cache.arrays.point("state")
        for number, point in points.items():
            assert not states[point] or self.state_content[int(states[point])] == number
        return published, {number: bool(exact[point]) for number, point in points.items()}
