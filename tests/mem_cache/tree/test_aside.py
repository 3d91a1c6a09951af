"""Pages set aside: no match finds them, their locks hold, and a clean copy stands beside them."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from mem_cache.allocator import PageAllocator
from mem_cache.spec import TreeSpec
from mem_cache.tree.aside import only_of, set_aside, top_of
from mem_cache.tree.handles import Insertion, Lock
from mem_cache.tree.radix import ShadowRadixCache

SPEC = TreeSpec(page_size=4, swa_page_size=2, window=2, has_state=True)


class Pools:
    """A cache, and who refers to what."""

    def __init__(self) -> None:
        self.full, self.swa = PageAllocator("full", 20), PageAllocator("swa", 8)
        self.states = PageAllocator("rings", 4)
        self.cache = ShadowRadixCache(SPEC, full=self.full, swa=self.swa, states=self.states)
        self.held = Counter[int]()

    def found(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens` a match finds."""
        return self.cache.match(np.array(tokens, np.int32), limit=len(tokens)).full_tokens

    def lock(self, tokens: Sequence[int]) -> Lock:
        return self.cache.lock(self.cache.match(np.array(tokens, np.int32), limit=len(tokens)))

    def top(self, tokens: Sequence[int]) -> int:
        return top_of(self.cache, self.cache.peek(np.array(tokens, np.int32)).node)

    def new(self, count: int) -> list[int]:
        pages = self.full.alloc(count).tolist()
        self.held.update(pages)
        return pages

    def insert(
        self, tokens: Sequence[int], pages: Sequence[int], lock: Lock | None = None
    ) -> Insertion:
        return self.cache.insert(np.array(tokens, np.int32), np.array(pages, np.int32), lock=lock)

    def give_up(self, pages: Sequence[int]) -> None:
        self.full.decref(pages)
        self.held.subtract(pages)

    def put(self, tokens: Sequence[int]) -> list[int]:
        """Have a request leave `tokens` in the tree; return its pages."""
        pages = self.new(-(-len(tokens) // 4))
        self.insert(tokens, pages)
        self.give_up(pages)
        return pages

    def point(self, node: int, position: int) -> bool:
        swa = self.swa.alloc(SPEC.window_pages_at(position)).tolist()
        state = int(self.states.alloc(1)[0])
        return self.cache.add_point(node, position, swa_pages=swa, state=state, give=True)

    def check(self) -> None:
        self.cache.check(full=+self.held, swa=Counter(), states=Counter())


@pytest.fixture
def pools() -> Pools:
    """An empty cache."""
    return Pools()


def test_what_nobody_has_locked_goes_at_once_and_siblings_stay(pools: Pools) -> None:
    pools.put([1] * 8)
    pools.put([1, 1, 1, 1, 2, 2])
    pools.put([3] * 8)
    node = pools.cache.match(np.array([1] * 8, np.int32), limit=8).node

    assert set_aside(pools.cache, node) == 1
    pools.check()

    assert pools.found([1] * 8) == 4
    assert pools.found([1, 1, 1, 1, 2, 2]) == 6
    assert set_aside(pools.cache, pools.top([1] * 8)) == 2
    pools.check()
    assert pools.found([1] * 8) == 0
    assert pools.found([3] * 8) == 8
    assert pools.full.free == 18


def test_a_page_that_left_is_let_be(pools: Pools) -> None:
    pools.put([1] * 4)
    node = pools.cache.match(np.array([1] * 4, np.int32), limit=4).node
    set_aside(pools.cache, node)

    assert set_aside(pools.cache, node) == 0
    assert set_aside(pools.cache, 0) == 0
    assert pools.top([2] * 4) == 0


def test_a_locked_page_stays_and_a_clean_copy_stands_beside_it(pools: Pools) -> None:
    pages = pools.put([1] * 8)
    lock = pools.lock([1] * 8)
    set_aside(pools.cache, lock.node)
    assert set_aside(pools.cache, lock.node) == 0
    set_aside(pools.cache, pools.top([1] * 8))
    pools.check()
    assert pools.found([1] * 8) == 0

    clean = pools.put([1] * 8)

    pools.check()
    assert pools.cache.match(np.array([1] * 8), limit=8).pages.tolist() == clean
    assert not set(clean) & set(pages)
    pools.cache.unlock(lock)
    pools.check()
    pools.cache.evict_full(20)
    pools.check()
    assert pools.full.free == 20


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("known", [4, 6, 7, 8])
@pytest.mark.parametrize("more", [0, 1, 2, 5])
def test_whoever_has_locked_it_goes_on_below(
    pools: Pools, known: int, more: int, clean: bool
) -> None:
    pages = pools.new(-(-known // 4))
    lock = pools.lock([])
    pools.insert([1] * known, pages, lock)
    set_aside(pools.cache, lock.node)
    if clean:
        pools.put([1] * known)
    before = pools.found([1] * 20)
    total = known + more
    pages += pools.new(-(-total // 4) - len(pages))

    added = pools.insert([1] * known + [2] * more, pages, lock)

    pools.check()
    assert added.pages.tolist() == pages[: total // 4]
    assert pools.found([1] * known + [2] * more) == before
    assert pools.found([1] * 20) == before
    pools.cache.unlock(lock)
    pools.give_up(pages)
    pools.check()
    pools.cache.evict_full(20)
    pools.check()
    assert pools.full.free == 20


def test_its_points_serve_nobody_by_way_of_a_sibling(pools: Pools) -> None:
    lock = pools.lock([])
    pages = pools.new(1)
    pools.insert([1, 1, 1, 2], pages, lock)
    assert pools.point(lock.node, 2)
    pools.put([1, 1, 3])
    assert pools.cache.match(np.array([1, 1, 3, 3])).start == 2

    set_aside(pools.cache, lock.node)

    match = pools.cache.match(np.array([1, 1, 3, 3]))
    assert (match.full_tokens, match.start, match.point) == (3, 0, None)
    pools.check()
    pools.cache.unlock(lock)
    pools.give_up(pages)
    pools.cache.evict_full(20)
    pools.check()
    assert pools.swa.free == pools.swa.capacity


def test_only_what_one_lock_protects_is_its_own(pools: Pools) -> None:
    pools.put([1] * 8)
    lock = pools.lock([1] * 8)
    pages = pools.new(4)
    pools.insert([1] * 16, pages, lock)
    nodes = pools.cache.arrays.node_of
    own = int(nodes[pages[2]])
    assert only_of(pools.cache, lock, first=2) == own

    other = pools.lock([1] * 12)
    assert only_of(pools.cache, lock, first=2) == int(nodes[pages[3]])
    assert only_of(pools.cache, other, first=2) == 0
    pools.cache.unlock(other)
    assert only_of(pools.cache, lock, first=2) == own
    assert only_of(pools.cache, lock, first=4) == 0

    twin, nothing = pools.lock([1] * 16), pools.lock([2] * 4)
    assert [only_of(pools.cache, held, first=0) for held in (lock, twin, nothing)] == [0, 0, 0]
    pools.cache.unlock(twin)
    assert only_of(pools.cache, lock, first=2) == own


def test_a_page_that_came_back_counts_once_also_where_a_clean_copy_follows_it(
    pools: Pools,
) -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    pools.put(tokens)
    pools.cache.evict_full(pools.full.capacity)
    pools.put(tokens)
    assert pools.cache.returned_pages == 2
    lock = pools.lock(tokens)

    set_aside(pools.cache, pools.top(tokens))
    pools.put(tokens)

    assert pools.cache.returned_pages == 2
    pools.cache.unlock(lock)
    pools.check()
