"""The arrays lie where the core looks for them, and are as large as it takes them to be."""

import ctypes

import numpy as np

from mem_cache.allocator import PageAllocator
from mem_cache.spec import TreeSpec
from mem_cache.tree.arrays import TreeArrays
from mem_cache.tree.core.binding import (
    LIST,
    RETURNS,
    ROOT,
    SAVE_CLASSES,
    CLinks,
    CPool,
    CTree,
    address,
    library,
)

SPEC = TreeSpec(page_size=4, swa_page_size=2, window=6)


def _arrays() -> TreeArrays:
    full, swa, states = (PageAllocator(n, c) for n, c in (("full", 20), ("swa", 9), ("states", 5)))
    return TreeArrays(
        SPEC, full=full, swa=swa, states=states, page_kinds=3, point_kinds=7, end_kind=4, replay=-1
    )


def _all(arrays: TreeArrays) -> list[np.ndarray]:
    """Every array that the object owns."""
    owned: list[np.ndarray] = [*arrays.words.values(), *arrays.point_words.values()]
    for value in vars(arrays).values():
        if isinstance(value, np.ndarray):
            owned.append(value)
        elif isinstance(value, list):
            owned += value
    return owned


def test_every_pointer_of_the_struct_leads_to_an_array_of_its_own() -> None:
    arrays = _arrays()
    places = {address(array) for array in _all(arrays)}
    pointers: list[int] = []
    for name, kind, *_ in CTree._fields_:
        value = getattr(arrays.tree, name)
        if kind is ctypes.c_void_p:
            pointers.append(value)
        elif kind is CLinks:
            pointers += [value.newer, value.older]

    assert None not in pointers
    assert len(set(pointers)) == len(pointers)
    assert set(pointers) == places


def test_pools_are_those_of_the_allocators() -> None:
    arrays = _arrays()

    pools = (arrays.tree.full, arrays.tree.swa, arrays.tree.states)

    assert [pool.contents.capacity for pool in pools] == [20, 9, 5]
    assert isinstance(pools[0].contents, CPool)


def test_there_is_a_place_for_each_page_and_each_ring_and_for_nobody() -> None:
    arrays = _arrays()

    assert {len(array) for array in arrays.words.values()} == {21}
    assert {len(array) for array in arrays.point_words.values()} == {6}
    assert arrays.tokens.shape == (21, 4)
    assert arrays.windows.shape == (6, SPEC.window_pages) == (6, 3)
    links = (arrays.page_links(), arrays.root_links(), arrays.point_links())
    assert [(len(newer), len(older)) for newer, older in links] == [(21, 21), (21, 21), (6, 6)]
    assert (len(arrays.page_lists), len(arrays.point_lists)) == (3, 7 * SAVE_CLASSES)
    assert len(arrays.removed) == 21


def test_tables_have_a_power_of_two_of_places_and_enough_of_them() -> None:
    arrays = _arrays()

    for table, mask, least in (
        (arrays.traces, arrays.tree.trace_mask, 20),
        (arrays.buckets, arrays.tree.bucket_mask, 2 * 5),
    ):
        assert len(table) == mask + 1 >= least
        assert len(table) & mask == 0


def test_arrays_go_by_the_names_of_the_struct() -> None:
    arrays = _arrays()

    for names, view in ((arrays.words, arrays.page), (arrays.point_words, arrays.point)):
        for name in names:
            assert address(view(name)) == getattr(arrays.tree, name)


def test_what_is_written_here_is_read_by_the_core_and_the_other_way_round() -> None:
    arrays = _arrays()
    arrays.page("parent")[[3, 5, 7]] = [-1, 3, 5]
    arrays.page("children")[[3, 5]] = 1
    pages = np.zeros(21, np.int32)

    count = library().tree_span(arrays.pointer, 7, address(pages))

    assert pages[:count].tolist() == [7, 5, 3]


def test_more_roots_keep_those_that_there_are() -> None:
    arrays = _arrays()
    first = len(arrays.roots)
    arrays.roots["pages"] = np.arange(first)

    arrays.add_roots()

    assert len(arrays.roots) == 2 * first
    assert arrays.roots["pages"].tolist() == [*range(first), *[0] * first]
    assert arrays.tree.roots == address(arrays.roots)


def test_the_records_are_aligned_as_the_compiler_aligns_them() -> None:
    assert [record.itemsize for record in (LIST, ROOT, RETURNS)] == [16, 48, 24]


def test_an_address_is_that_of_the_data_read_only_or_not() -> None:
    array = np.arange(6, dtype=np.int32)
    frozen = array[2:]
    frozen.flags.writeable = False

    assert address(array) == array.ctypes.data
    assert address(frozen) == array.ctypes.data + 8
    assert isinstance(address(np.empty(0, np.int32)), int)
