"""A namespace has a root while it holds anything; roots are given on, and never run out."""

import pytest

from mem_cache.allocator import PageAllocator
from mem_cache.spec import TreeSpec
from mem_cache.tree.arrays import TreeArrays
from mem_cache.tree.namespaces import Namespaces


@pytest.fixture
def arrays() -> TreeArrays:
    full, swa, states = (PageAllocator(name, 9) for name in ("full", "swa", "states"))
    return TreeArrays(
        TreeSpec(4, 2, 4),
        full=full,
        swa=swa,
        states=states,
        page_kinds=1,
        point_kinds=2,
        end_kind=1,
        replay=-1,
    )


def test_each_name_keeps_its_root(arrays: TreeArrays) -> None:
    names = Namespaces(arrays)

    assert [names.node(name) for name in ("", "a", "", "b", "a")] == [-1, -2, -1, -3, -2]
    assert names.roots == {"": 0, "a": 1, "b": 2}


def test_only_those_that_hold_tokens_are_told(arrays: TreeArrays) -> None:
    names = Namespaces(arrays)
    for name in ("a", "b"):
        names.node(name)
    arrays.roots["tokens"][1] = 7

    assert names.tokens() == {"b": 7}


def test_roots_of_empty_namespaces_are_given_on_and_more_are_made(arrays: TreeArrays) -> None:
    names = Namespaces(arrays)
    count = len(arrays.roots)
    for k in range(count):
        names.node(f"name {k}")
    # Of those, one holds pages, and one is locked.
    arrays.roots["pages"][3], arrays.roots["locks"][4] = 1, 1

    seen = {names.node(f"other {k}") for k in range(3 * count)}
    assert len(arrays.roots) >= count
    assert names.roots["name 3"] == 3
    assert names.roots["name 4"] == 4
    assert not seen & {-4, -5}


def test_clearing_forgets_all_names(arrays: TreeArrays) -> None:
    names = Namespaces(arrays)
    names.node("a")
    names.clear()

    assert names.roots == {}
    assert names.node("b") == -1
