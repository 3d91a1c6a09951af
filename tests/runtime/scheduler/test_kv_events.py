"""Which events a tree's changes become, and under which hashes."""

import hashlib

import numpy as np
import pytest

from mem_cache.allocator import PageAllocator
from mem_cache.errors import IntegrityError
from mem_cache.spec import TreeSpec
from mem_cache.tree.aside import below, set_aside, top_of
from mem_cache.tree.radix import ShadowRadixCache
from runtime.kv_hashes import chain_hashes, top_hash
from runtime.scheduler.kv_event_wire import Cleared, Event, Removed, Stored
from runtime.scheduler.kv_events import KvEvents

pytestmark = pytest.mark.usefixtures("either_way")

PAGE = 4
PAGES = 6
KEY = b"k" * 32


class Rig:
    """A small tree, its events, and a reader who believes them.

    batches  as they were flushed
    known    hash -> the tokens up to the end of that block, of all blocks that are stored
    """

    hash_key: bytes | None = None

    def __init__(self) -> None:
        spec = TreeSpec(page_size=PAGE, swa_page_size=2, window=4)
        self.full = PageAllocator("full", PAGES)
        self.cache = ShadowRadixCache(
            spec,
            full=self.full,
            swa=PageAllocator("swa", 4),
            states=PageAllocator("rings", 2),
            log_removed=True,
        )
        self.events = KvEvents(self.cache, self, clock=lambda: 12.5)
        self.batches: list[list[Event]] = []
        self.known: dict[int, tuple[int, ...]] = {}

    def publish(self, events: list[Event], *, time_s: float) -> None:
        """Read a batch; every block that goes was there, every parent is."""
        assert time_s == 12.5
        self.batches.append(events)
        for event in events:
            match event:
                case Stored():
                    above = () if event.parent is None else self.known[event.parent]
                    for block, tokens in zip(event.hashes, event.tokens.tolist(), strict=True):
                        above = (*above, *tokens)
                        assert block not in self.known
                        self.known[block] = above
                case Removed():
                    for block in event.hashes:
                        del self.known[block]
                case Cleared():
                    self.known.clear()

    def insert(self, tokens: list[int], *, namespace: str = "") -> None:
        """Put a sequence into the tree, evicting what is in the way, and tell of it."""
        count = -(-len(tokens) // PAGE)
        assert self.full.free >= count or self.cache.evict_full(count)
        own = self.full.alloc(count)
        ids = np.array(tokens, np.int32)
        insertion = self.cache.insert(ids, own, namespace=namespace)
        self.full.decref(own)
        self.events.inserted(insertion, namespace)

    def flushed(self) -> list[Event]:
        """Flush; return the one batch that came of it, or nothing."""
        before = len(self.batches)
        self.events.flush()
        assert len(self.batches) <= before + 1
        return self.batches[before] if len(self.batches) > before else []

    def sequences_known(self) -> set[tuple[int, ...]]:
        """Return what the reader believes to be there."""
        return set(self.known.values())

    def sequences(self) -> set[tuple[int, ...]]:
        """Return what is in the tree: the tokens up to the end of each whole page."""
        arrays = self.cache.arrays
        parent, length = arrays.page("parent"), arrays.page("length")
        found: set[tuple[int, ...]] = set()
        for page in range(1, PAGES + 1):
            tokens: tuple[int, ...] = ()
            node = page
            while length[page] == PAGE and parent[node] != 0 and node > 0:
                tokens = (*arrays.tokens[node].tolist(), *tokens)
                node = int(parent[node])
            if tokens:
                found.add(tokens)
        return found


@pytest.fixture
def rig() -> Rig:
    """An empty tree with events."""
    return Rig()


def stored(events: list[Event]) -> Stored:
    [event] = events
    assert isinstance(event, Stored)
    return event


def test_a_chain_hash_is_blake2b_of_the_hash_before_and_the_tokens() -> None:
    tokens = np.array([[1, 2], [3, -1]], np.int32)

    hashes = chain_hashes(258, tokens)

    before = (258).to_bytes(8, "big")
    for row, found in zip(("0100000002000000", "03000000ffffffff"), hashes, strict=True):
        data = before + bytes.fromhex(row)
        before = hashlib.blake2b(data, digest_size=8, person=b"umbra kv block").digest()
        assert found == int.from_bytes(before, "big")


def test_a_hash_is_the_same_in_every_process_unless_a_salt_is_involved() -> None:
    runs: list[list[int]] = []
    for namespace in ("", "", "salted", "salted"):
        rig = Rig()
        rig.insert([1, 2, 3, 4], namespace=namespace)
        runs.append(stored(rig.flushed()).hashes)

    assert runs[0] == runs[1] == [0xDF0AE22C071F47D1]
    assert len({hashes[0] for hashes in runs}) == 3


def test_whole_pages_are_announced_together_with_their_tokens(rig: Rig) -> None:
    rig.insert([1, 2, 3, 4, 5, 6, 7, 8, 9])

    event = stored(rig.flushed())
    assert event.parent is None
    assert len(set(event.hashes)) == 2
    assert event.tokens.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_a_partial_page_is_announced_once_it_is_whole(rig: Rig) -> None:
    rig.insert([1, 2, 3, 4, 5])
    first = stored(rig.flushed())
    rig.insert([1, 2, 3, 4, 5, 6])
    assert rig.flushed() == []

    rig.insert([1, 2, 3, 4, 5, 6, 7, 8])

    second = stored(rig.flushed())
    assert second.parent == first.hashes[0]
    assert second.tokens.tolist() == [[5, 6, 7, 8]]


def test_a_page_that_its_owner_filled_up_is_announced(rig: Rig) -> None:
    own = rig.full.alloc(2)
    for count in (6, 8):
        ids = np.arange(1, count + 1, dtype=np.int32)
        rig.events.inserted(rig.cache.insert(ids, own), "")

    first, second = rig.flushed()
    assert isinstance(first, Stored)
    assert isinstance(second, Stored)
    assert second.parent == first.hashes[0]
    assert second.tokens.tolist() == [[5, 6, 7, 8]]


def test_what_is_there_already_is_not_announced_again(rig: Rig) -> None:
    rig.insert([1, 2, 3, 4, 5, 6, 7, 8])
    rig.flushed()

    rig.insert([1, 2, 3, 4, 5, 6, 7, 8])
    assert rig.flushed() == []
    rig.insert([1, 2, 3, 4, 9, 9, 9, 9])
    assert stored(rig.flushed()).tokens.tolist() == [[9, 9, 9, 9]]


class KeyedRig(Rig):
    """Readers have the key."""

    hash_key = KEY


def test_a_reader_with_the_key_computes_the_hashes_of_a_salt() -> None:
    rig = KeyedRig()
    rig.insert([1, 2, 3, 4, 5, 6, 7, 8], namespace="salted")
    rig.events.flush()

    tokens = np.arange(1, 9, dtype=np.int32).reshape(2, PAGE)
    assert list(rig.known) == chain_hashes(top_hash("salted", KEY), tokens)


def test_the_same_tokens_have_another_hash_in_another_namespace(rig: Rig) -> None:
    for namespace in ("", "a", "b"):
        rig.insert([1, 2, 3, 4, 5, 6, 7, 8], namespace=namespace)

    hashes = [h for event in rig.flushed() if isinstance(event, Stored) for h in event.hashes]
    assert len(set(hashes)) == 6


def test_a_page_that_left_and_came_back_with_other_tokens_is_told_in_that_order(rig: Rig) -> None:
    rig.insert(list(range(PAGE * PAGES)))
    gone = stored(rig.flushed()).hashes

    rig.insert(list(range(100, 100 + PAGE * PAGES)))

    removed, event = rig.flushed()
    assert removed == Removed(gone[::-1])
    assert isinstance(event, Stored)
    assert rig.sequences() == set(rig.known.values())


def test_a_cleared_tree_is_told_in_one_word(rig: Rig) -> None:
    rig.insert([1, 2, 3, 4])
    rig.flushed()
    rig.cache.reset()
    rig.events.cleared()
    rig.insert([1, 2, 3, 4])

    cleared, event = rig.flushed()
    assert cleared == Cleared()
    assert stored([event]).parent is None


def test_nothing_is_published_when_nothing_happened(rig: Rig) -> None:
    assert rig.flushed() == []
    assert rig.batches == []


def test_an_insertion_that_was_not_told_is_noticed(rig: Rig) -> None:
    rig.cache.insert(np.arange(4, dtype=np.int32), rig.full.alloc(1))

    with pytest.raises(IntegrityError, match="no hash"):
        rig.insert([0, 1, 2, 3, 4, 5, 6, 7])


def test_a_reader_always_knows_exactly_the_whole_pages_of_the_tree(rig: Rig) -> None:
    draw = np.random.default_rng(3)
    kept: set[int] = set()
    for step in range(400):
        tokens = draw.integers(0, 2, draw.integers(1, PAGE * PAGES + 1)).tolist()
        rig.insert(tokens, namespace="")
        if step % 7 == 0:
            rig.cache.evict_full(int(draw.integers(0, PAGES)))
        if step % 90 == 89:
            rig.cache.reset()
            rig.events.cleared()
        rig.events.flush()

        assert set(rig.known.values()) == rig.sequences()
        kept.add(len(rig.known))
    assert max(kept) >= PAGES - 1
    assert sum(isinstance(e, Removed) for batch in rig.batches for e in batch) > 50


def test_pages_set_aside_are_gone_and_come_back_with_a_clean_copy() -> None:
    rig = Rig()
    rig.insert([1] * 12)
    match = rig.cache.match(np.array([1] * 12, np.int32), limit=12)
    lock = rig.cache.lock(match)
    top = top_of(rig.cache, match.node)
    units = rig.cache.arrays.unit[below(rig.cache, top)].tolist()
    rig.flushed()
    assert len(rig.known) == 3

    set_aside(rig.cache, top)
    rig.events.set_aside(units)
    rig.flushed()
    # What follows it cannot be reached without it, nor once another one has its place.
    assert not rig.known

    rig.insert([1] * 4)
    rig.flushed()
    assert rig.sequences_known() == {(1,) * 4}
    rig.insert([1] * 12)
    rig.flushed()
    assert rig.sequences_known() == {(1,) * 4, (1,) * 8, (1,) * 12}
    rig.cache.unlock(lock)
    clean = rig.cache.lock(rig.cache.match(np.array([1] * 12, np.int32), limit=12))
    rig.cache.evict_full(3)
    rig.flushed()
    assert rig.sequences_known() == {(1,) * 4, (1,) * 8, (1,) * 12}
    rig.cache.unlock(clean)
    rig.cache.evict_full(6)
    rig.flushed()
    assert not rig.known


def test_a_page_set_aside_is_not_told_of_again_with_those_above_it() -> None:
    rig = Rig()
    rig.insert([1] * 8)
    lock = rig.cache.lock(rig.cache.match(np.array([1] * 8, np.int32), limit=8))
    rig.flushed()
    told = list[Event]()
    for node in (lock.node, top_of(rig.cache, lock.node)):
        units = rig.cache.arrays.unit[below(rig.cache, node)].tolist()
        set_aside(rig.cache, node)
        rig.events.set_aside(units)
        told += rig.flushed()

    assert [len(event.hashes) for event in told if isinstance(event, Removed)] == [1, 1]


def test_nobody_is_told_of_what_comes_below_a_page_set_aside() -> None:
    """A request that runs may have its lock two pages further down, and goes on from there."""
    rig = Rig()
    rig.insert([1] * 8)
    lock = rig.cache.lock(rig.cache.match(np.array([1] * 8, np.int32), limit=8))
    top = top_of(rig.cache, lock.node)
    units = rig.cache.arrays.unit[below(rig.cache, top)].tolist()
    set_aside(rig.cache, top)
    rig.events.set_aside(units)

    pages = np.array([*units, *rig.full.alloc(1).tolist()], np.int32)
    rig.events.inserted(rig.cache.insert(np.array([1] * 12, np.int32), pages, lock=lock), "")

    rig.flushed()
    assert not rig.known


def test_nobody_is_told_of_what_comes_after_a_page_set_aside() -> None:
    rig = Rig()
    rig.insert([1] * 4)
    lock = rig.cache.lock(rig.cache.match(np.array([1] * 4, np.int32), limit=4))
    unit = int(rig.cache.arrays.unit[lock.node])
    set_aside(rig.cache, lock.node)
    rig.events.set_aside([unit])
    rig.flushed()
    assert not rig.known

    pages = np.array([unit, *rig.full.alloc(2).tolist()], np.int32)
    more = rig.cache.insert(np.array([1] * 12, np.int32), pages, lock=lock)
    rig.events.inserted(more, "")
    rig.full.decref(pages[1:])

    assert not rig.flushed()
    rig.cache.unlock(lock)
    rig.cache.evict_full(6)
    assert not rig.flushed()
