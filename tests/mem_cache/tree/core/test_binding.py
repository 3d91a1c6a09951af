"""The core's parts alone: structs as the compiler has them, siblings, lists, the points' table."""

import ctypes
import re
from pathlib import Path

import numpy as np
import pytest

import mem_cache.tree.core.binding
from mem_cache.allocator import PageAllocator
from mem_cache.errors import IntegrityError
from mem_cache.spec import TreeSpec
from mem_cache.tree.arrays import TreeArrays
from mem_cache.tree.core.binding import LIST, RETURNS, ROOT, TRACE, CLinks, address, library
from tests.testing.dictionary_model import Rig

HEADER = (Path(mem_cache.tree.core.binding.__file__).parent / "core.h").read_text()
STRUCTS = ("Pool", "Links", "Tree", "Match", "Insertion")


def _fields(struct: str) -> list[str]:
    """Return the names of a struct's fields as the header declares them."""
    text = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)
    body = re.search(rf"typedef struct {{([^}}]*)}} {struct};", text)
    assert body is not None
    return re.findall(r"(\w+);", body[1])


@pytest.mark.parametrize("struct", STRUCTS)
def test_structs_have_the_fields_of_the_header_in_its_order(struct: str) -> None:
    mirror: type[ctypes.Structure] = getattr(mem_cache.tree.core.binding, f"C{struct}")
    mine = [field[0] for field in mirror._fields_]

    # `from` is a keyword in Python.
    assert ["from" if name == "from_node" else name for name in mine] == _fields(struct)


@pytest.mark.parametrize(
    ("struct", "record"), [("List", LIST), ("Root", ROOT), ("Returns", RETURNS), ("Trace", TRACE)]
)
def test_records_have_the_fields_of_the_header_in_its_order(struct: str, record: np.dtype) -> None:
    assert list(record.names or ()) == _fields(struct)


def test_a_mirror_of_another_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Longer(mem_cache.tree.core.binding.CMatch):
        """One field more than the header has."""

        _fields_ = (("more", ctypes.c_int64),)

    monkeypatch.setattr(mem_cache.tree.core.binding, "CMatch", Longer)

    with pytest.raises(IntegrityError, match=r"core\.h and its mirror differ"):
        library.__wrapped__()


class Siblings:
    """The pages below one node, and the same as a plain table for brute force."""

    def __init__(self, size: int, capacity: int) -> None:
        spec = TreeSpec(page_size=size, swa_page_size=1, window=1)
        small = PageAllocator("none", 1)
        full = PageAllocator("full", capacity)
        self.arrays = TreeArrays(
            spec,
            full=full,
            swa=small,
            states=small,
            page_kinds=1,
            point_kinds=9,
            end_kind=8,
            replay=-1,
        )
        self.trie = ctypes.c_int32(0)
        self.pages: dict[tuple[int, ...], int] = {}
        self.free = list(range(capacity, 0, -1))
        self.size = size

    def add(self, tokens: tuple[int, ...]) -> None:
        """Add a page, its end padded."""
        page = self.pages[tokens] = self.free.pop()
        self.arrays.tokens[page] = [*tokens, *[-1] * (self.size - len(tokens))]
        self._call("siblings_add", page)

    def remove(self, tokens: tuple[int, ...]) -> None:
        """Take a page out."""
        page = self.pages.pop(tokens)
        self._call("siblings_remove", page)
        self.free.append(page)

    def _call(self, name: str, page: int) -> None:
        getattr(library(), name)(
            ctypes.c_void_p(self.arrays.pointer), ctypes.byref(self.trie), ctypes.c_int32(page)
        )

    def nearest(self, tokens: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the tokens of the page that the trie leads to."""
        query = np.array([*tokens, *[-1] * (self.size - len(tokens))], np.int32)
        page = library().siblings_nearest(self.arrays.pointer, self.trie.value, address(query))
        if page == 0:
            return None
        row = self.arrays.tokens[page]
        found = tuple(row[row >= 0].tolist())
        assert self.pages[found] == page
        return found

    def longest_run(self, tokens: tuple[int, ...]) -> int:
        """Return the longest run that any page has in common with the tokens, by looking at all."""
        query = np.array([*tokens, *[-2] * (self.size - len(tokens))], np.int32)
        rows = self.arrays.tokens[list(self.pages.values())]
        return int((rows == query).cumprod(axis=1).sum(axis=1).max(initial=0))

    def check(self) -> None:
        """Each page is found, once; each but one bears a branch, which lies above it."""
        low, high = self.arrays.page("split_low"), self.arrays.page("split_high")
        stack: list[tuple[int, int, tuple[int, ...]]] = [(self.trie.value, -1, ())]
        found: list[int] = []
        borne: set[int] = set()
        while stack:
            reference, bit, above = stack.pop()
            if reference > 0:
                found.append(reference)
                borne |= {reference} & set(above)
            elif reference < 0:
                at = int(self.arrays.page("split_at")[-reference])
                assert at > bit
                path = (*above, -reference)
                stack += [(int(low[-reference]), at, path), (int(high[-reference]), at, path)]
        assert sorted(found) == sorted(self.pages.values())
        assert len(borne) == max(0, len(found) - 1)


def _run(left: tuple[int, ...], right: tuple[int, ...] | None) -> int:
    pairs = enumerate(zip(left, right or (), strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(left), len(right or ())))


def _random_page(random: np.random.Generator, size: int, known: list[tuple[int, ...]]) -> list[int]:
    """Draw tokens that share a long prefix with a known page, or small ones, or wild ones."""
    length = size if random.random() < 0.6 else int(random.integers(1, size + 1))
    most = int(random.choice([2, 5, 129280, 2**31 - 1]))
    tokens = random.integers(0, most, length)
    if known and random.random() < 0.7:
        like = known[random.integers(len(known))]
        shared = min(int(random.integers(0, size)), len(like), length)
        tokens[:shared] = like[:shared]
    return tokens.tolist()


@pytest.mark.parametrize(("size", "count"), [(1, 3000), (3, 3000), (256, 2000)])
def test_the_nearest_sibling_has_the_longest_run_after_any_additions_and_removals(
    size: int, count: int
) -> None:
    random = np.random.default_rng(size)
    siblings = Siblings(size, count)
    known: list[tuple[int, ...]] = []
    for step in range(2 * count):
        if known and (len(known) == count or random.random() < 0.25):
            at = int(random.integers(len(known)))
            known[at], known[-1] = known[-1], known[at]
            siblings.remove(known.pop())
        else:
            tokens = tuple(_random_page(random, size, known))
            if tokens not in siblings.pages:
                siblings.add(tokens)
                known.append(tokens)
        if step % 8 == 0:
            query = tuple(_random_page(random, size, known))
            assert _run(query, siblings.nearest(query)) == siblings.longest_run(query)
        if step % (count // 4) == 0:
            siblings.check()
    assert len(known) > count // 4
    for tokens in known:
        assert siblings.nearest(tokens) == tokens


@pytest.mark.parametrize("size", [1, 3, 256])
def test_siblings_go_in_any_order_until_none_is_left(size: int) -> None:
    random = np.random.default_rng(7)
    base = random.integers(0, 9, size)
    siblings = Siblings(size, 200)
    known: set[tuple[int, ...]] = set()
    for number in range(200):
        base[-1 - number % min(size, 5)] = number
        known.add(tuple(base.tolist()))
    for tokens in random.permutation(sorted(known)):
        siblings.add(tuple(tokens.tolist()))

    for tokens in random.permutation(sorted(known)):
        siblings.remove(tuple(tokens.tolist()))
        siblings.check()

    assert siblings.trie.value == 0
    assert siblings.nearest((1,)) is None


def test_a_page_and_its_beginnings_are_siblings_that_are_told_apart() -> None:
    siblings = Siblings(5, 9)
    for length in (3, 5, 1, 4, 2):
        siblings.add((7, 7, 7, 7, 7)[:length])

    for length in range(1, 6):
        assert siblings.nearest((7, 7, 7, 7, 7)[:length]) == (7, 7, 7, 7, 7)[:length]
    assert _run((7, 7, 8), siblings.nearest((7, 7, 8))) == 2


@pytest.mark.parametrize("length", [0, 1, 7])
def test_a_common_run_ends_at_the_first_difference(length: int) -> None:
    left = np.arange(8, dtype=np.int32)
    for differs in range(9):
        right = left.copy()
        right[differs:] += 1
        run = library().common_run(
            ctypes.c_void_p(address(left)), ctypes.c_void_p(address(right)), length
        )
        assert run == min(differs, length)


class Lists:
    """Some lists over shared links, and the same as Python lists, oldest first."""

    def __init__(self, items: int, lists: int) -> None:
        self.newer, self.older = np.zeros(items + 1, np.int32), np.zeros(items + 1, np.int32)
        self.links = CLinks(address(self.newer), address(self.older))
        self.records = np.zeros(lists, LIST)
        self.model: list[list[int]] = [[] for _ in range(lists)]

    def call(self, name: str, which: int, *items: int) -> None:
        """Call a function of the core on one of the lists."""
        place = ctypes.c_void_p(address(self.records) + which * LIST.itemsize)
        getattr(library(), name)(place, self.links, *(ctypes.c_int32(item) for item in items))

    def read(self, which: int) -> list[int]:
        """Return the items of a list by following it; both directions must agree."""
        record = self.records[which]
        forth, back = [int(record["oldest"])], [int(record["newest"])]
        while forth[-1]:
            forth.append(int(self.newer[forth[-1]]))
        while back[-1]:
            back.append(int(self.older[back[-1]]))
        assert forth[:-1] == back[-2::-1]
        assert record["length"] == len(forth) - 1
        return forth[:-1]


def test_lists_keep_their_order_whatever_comes_and_goes() -> None:
    random = np.random.default_rng(3)
    lists = Lists(40, 3)
    place: dict[int, int] = {}
    for _ in range(3000):
        item, which = int(random.integers(1, 41)), int(random.integers(3))
        model = lists.model[which]
        if item in place:
            lists.call("list_remove", place[item], item)
            lists.model[place.pop(item)].remove(item)
            assert lists.newer[item] == lists.older[item] == 0
        elif model and random.random() < 0.5:
            at = int(random.integers(len(model)))
            lists.call("list_push_before", which, item, model[at])
            model.insert(at, item)
            place[item] = which
        else:
            lists.call("list_push_newest", which, item)
            model.append(item)
            place[item] = which
        assert [lists.read(i) for i in range(3)] == lists.model


def test_only_what_is_held_can_be_let_go() -> None:
    rig = Rig(TreeSpec(page_size=4, swa_page_size=2, window=4), full=9, swa=9, states=4)
    rig.complete([1, 2, 3, 4, 5], 5)
    match = rig.match([1, 2, 3, 4, 5, 6])
    assert match.point is not None
    core, tree, not_locked = library(), rig.cache.arrays.pointer, -6

    for node in (match.node, -1, 1):
        assert core.tree_unlock(tree, node) == not_locked
    for point in (match.point.id, 1):
        assert core.tree_unpin(tree, point) == not_locked

    rig.check()


def test_points_inside_pages_are_found_behind_any_sibling_by_their_tokens() -> None:
    random = np.random.default_rng(5)
    rig = Rig(TreeSpec(page_size=8, swa_page_size=8, window=8), full=600, swa=500, states=400)
    sequences: list[list[int]] = []
    for _ in range(150):
        tokens = random.integers(0, 2, 20).tolist()
        if len(rig.match([*tokens, 0]).pages) == 3 and rig.match([*tokens, 0]).full_tokens == 20:
            continue
        row = rig.begin(tokens)
        rig.publish(row)
        for position in random.choice(np.arange(1, 21), 3, replace=False).tolist():
            rig.add_point(row, position)
        rig.finish(row)
        sequences.append(tokens)
    rig.check()

    for round_ in range(4):
        for tokens in sequences[round_::4]:
            kept = int(random.integers(1, 20))
            rig.match([*tokens[:kept], 1 - tokens[kept], 1, 1])
        rig.evict_swa(states=rig.states.free + 40)
        rig.evict_full(rig.full.free + 20)
        rig.check()
