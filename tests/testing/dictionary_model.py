"""A tree of prefixes as a dictionary, and a rig that runs the real tree against it.

Every prefix of every sequence gets a number of its own. Units hold such numbers instead of bytes:
a position of a full page or of an SWA page holds the prefix that ends with it, a ring the prefix
it was computed from. So a test sees at once whether anything reused belongs to other tokens.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from mem_cache.allocator import PageAllocator
from mem_cache.errors import OutOfPages
from mem_cache.node import Node
from mem_cache.radix import Lock, Match, ShadowRadixCache
from mem_cache.spec import TreeSpec, div_ceil


class Prefixes:
    """Numbers for prefixes: equal numbers if and only if namespace and tokens are equal."""

    def __init__(self) -> None:
        self._next: dict[tuple[object, int], int] = {}
        self.parent: dict[int, int] = {}

    def ids(self, namespace: str, tokens: Sequence[int]) -> list[int]:
        """Return the numbers of tokens[:0], tokens[:1], ... tokens[:n]."""
        top = self._next.setdefault((namespace, -1), len(self._next))
        return self.below(top, tokens)

    def below(self, prefix: int, tokens: Sequence[int]) -> list[int]:
        """Return the number given, and those of the prefixes that the tokens make of it."""
        last, found = prefix, [prefix]
        for token in tokens:
            number = self._next.setdefault((last, int(token)), len(self._next))
            self.parent[number] = last
            last = number
            found.append(last)
        return found


class Row:
    """A running request, as far as a cache can tell."""

    def __init__(self, namespace: str, lock: Lock) -> None:
        self.namespace = namespace
        self.lock = lock
        self.tokens: list[int] = []
        self.ids: list[int] = []
        self.published = 0
        self.table: list[int] = []
        self.own: set[int] = set()
        self.window: dict[int, int] = {}


class Rig:
    """The real tree, the model, and rows that use them by the rules; checks as it goes."""

    def __init__(self, spec: TreeSpec, *, full: int, swa: int, rings: int) -> None:
        self.spec = spec
        self.full = PageAllocator("full", full)
        self.swa = PageAllocator("swa", swa)
        self.rings = PageAllocator("rings", rings)
        self.cache = ShadowRadixCache(spec, full=self.full, swa=self.swa, rings=self.rings)
        self.prefixes = Prefixes()
        self.published: set[int] = set()
        self.points: set[int] = set()
        self.rows: list[Row] = []
        self.page_content: dict[int, list[int]] = {}
        self.swa_content: dict[int, dict[int, int]] = {}
        self.ring_content: dict[int, int] = {}

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
        assert match.node.start < full <= match.node.end or (full == 0 and match.node.is_root)
        self._check_pages(match, ids)
        self._check_resume(match, ids)
        return match

    def start(self, tokens: Sequence[int], *, namespace: str = "") -> Row | None:
        """Start a row: match, lock, copy the partial page, compute the rest. None if no room."""
        match = self.match(tokens, namespace=namespace)
        row = Row(namespace, self.cache.lock(match))
        self.rows.append(row)
        page, full = self.spec.page_size, match.full_tokens
        row.tokens = [int(token) for token in tokens[:full]]
        row.ids = self.prefixes.ids(namespace, row.tokens)
        row.published = full
        row.table = [int(unit) for unit in match.pages]
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
        ids = self.prefixes.ids(row.namespace, [*row.tokens, *tokens])
        for token in tokens:
            position = len(row.tokens)
            if position % page == 0 and not self._add_page(row):
                return False
            row.tokens.append(int(token))
            row.ids.append(ids[position + 1])
            self.page_content[row.table[-1]][position % page] = ids[position + 1]
        return True

    def publish(self, row: Row, *, use_lock: bool = True) -> None:
        """Insert all that the row has, and take over the tree's pages."""
        count, page = len(row.tokens), self.spec.page_size
        before = max(k for k in range(count + 1) if k == 0 or row.ids[k] in self.published)
        found = self.cache.insert(
            np.array(row.tokens, np.int32),
            np.array(row.table, np.int32),
            namespace=row.namespace,
            lock=row.lock if use_lock else None,
        )
        assert found.new_tokens == count - before
        assert count == 0 or found.node.start < count <= found.node.end
        self.cache.relock(row.lock, found.node)
        for index in range(count // page):
            if index in row.own:
                self.full.decref((row.table[index],))
                row.own.discard(index)
            else:
                assert row.table[index] == found.pages[index]
            row.table[index] = int(found.pages[index])
        row.published = count
        self.published.update(row.ids[1:])

    def add_point(self, row: Row, position: int) -> bool | None:
        """Give the row's published part a resume point. None if there is no room for it."""
        size = self.spec.swa_page_size
        numbers = self.spec.window_page_range(position)
        own: list[int] = []
        for number in numbers:
            shared = row.window.get(number)
            if shared is not None:
                self.swa.incref((shared,))
            elif (shared := self._try_alloc(self.swa)) is not None:
                self.swa_content[shared] = {
                    p % size: row.ids[p + 1]
                    for p in range(number * size, min((number + 1) * size, position))
                }
            if shared is not None:
                own.append(shared)
        ring = self._try_alloc(self.rings) if len(own) == len(numbers) else None
        if ring is None:
            self.swa.decref(own)
            return None
        self.ring_content[ring] = row.ids[position]
        added = self.cache.add_point(row.lock.node, position, swa_pages=own, ring=ring)
        assert added == (row.ids[position] not in self.points)
        self.points.add(row.ids[position])
        # Whole SWA pages stay with the row, so that its points share them.
        for number, unit in zip(numbers, own, strict=True):
            if (number + 1) * size <= position and number not in row.window:
                self.swa.incref((unit,))
                row.window[number] = unit
        self.swa.decref(own)
        self.rings.decref((ring,))
        return added

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
            assert self.cache.evictable_pages() == 0
        self._learn_evictions()
        return done

    def evict_swa(self, *, swa_pages: int = 0, rings: int = 0) -> bool:
        """Drop resume points; verify that none is left if it was not enough."""
        done = self.cache.evict_swa(swa_pages=swa_pages, rings=rings)
        assert done == (self.swa.free >= swa_pages and self.rings.free >= rings)
        assert done or len(self.cache.swa_lru) == 0
        self._learn_evictions()
        return done

    def reset(self) -> None:
        """Forget everything, on both sides."""
        self.cache.reset()
        self.published.clear()
        self.points.clear()

    def check(self) -> None:
        """Verify the tree's own invariants, its content, and all references."""
        full = Counter(row.table[index] for row in self.rows for index in row.own)
        swa = Counter(unit for row in self.rows for unit in row.window.values())
        self.cache.check(full=full, swa=swa, rings=Counter())
        assert self._tree_content() == (self.published, self.points)
        assert sum(self.cache.tokens_by_namespace().values()) >= len(self.published)
        for row in self.rows:
            assert all(self.full.references(page) for page in row.table)
            for position, number in enumerate(row.ids[1:]):
                page = row.table[position // self.spec.page_size]
                assert self.page_content[page][position % self.spec.page_size] == number

    def _check_pages(self, match: Match, ids: list[int]) -> None:
        page = self.spec.page_size
        assert len(match.pages) == div_ceil(match.full_tokens, page)
        for position in range(match.full_tokens):
            content = self.page_content[int(match.pages[position // page])]
            assert content[position % page] == ids[position + 1]

    def _check_resume(self, match: Match, ids: list[int]) -> None:
        full, point = match.full_tokens, match.point
        best = max((k for k in range(1, full + 1) if ids[k] in self.points), default=0)
        if point is None or point.position <= full:
            past = full + 1 < len(ids) and ids[full + 1] in self.points
            assert match.resume_tokens == (0 if point is None else point.position) == best
            assert best == full or not past
        else:
            assert point.position == full + 1 == match.resume_tokens + 1
            assert best < full
        if point is None:
            return
        exact = self.ring_content[point.ring]
        assert ids[full] == self.prefixes.parent[exact] if point.position > full else True
        assert exact == ids[point.position] if point.position <= full else True
        size, position = self.spec.swa_page_size, point.position
        pages = dict(zip(self.spec.window_page_range(position), point.swa_pages, strict=True))
        for p in range(max(0, position - self.spec.window), min(position, full)):
            assert self.swa_content[pages[p // size]][p % size] == ids[p + 1]

    def _share_window(self, row: Row, match: Match) -> None:
        assert match.point is not None
        size = self.spec.swa_page_size
        numbers = self.spec.window_page_range(match.point.position)
        for number, unit in zip(numbers, match.point.swa_pages, strict=True):
            if (number + 1) * size <= match.resume_tokens:
                self.swa.incref((unit,))
                row.window[number] = unit

    def _add_page(self, row: Row) -> bool:
        page = self._try_alloc(self.full)
        if page is None and self.evict_full(1):
            page = self._try_alloc(self.full)
        if page is None:
            self.finish(row)
            return False
        self.page_content[page] = [-1] * self.spec.page_size
        row.own.add(len(row.table))
        row.table.append(page)
        return True

    def _try_alloc(self, pool: PageAllocator) -> int | None:
        try:
            return int(pool.alloc(1)[0])
        except OutOfPages:
            return None

    def _learn_evictions(self) -> None:
        published, points = self._tree_content()
        assert published <= self.published
        assert points <= self.points
        for row in self.rows:
            assert published.issuperset(row.ids[1 : row.published + 1])
        self.published, self.points = published, points

    def _tree_content(self) -> tuple[set[int], set[int]]:
        published: set[int] = set()
        points: set[int] = set()
        for namespace, root in self.cache.roots.items():
            stack: list[tuple[Node, list[int]]] = [(root, self.prefixes.ids(namespace, ()))]
            while stack:
                node, above = stack.pop()
                ids = self.prefixes.below(above[-1], node.tokens.tolist())
                published.update(ids[1:])
                for point in node.points:
                    number = ids[point.position - node.start]
                    assert number not in points
                    points.add(number)
                stack.extend((child, ids) for child in node.children)
        return published, points
