"""The intrusive list keeps the order of use and notices every misuse."""

import pytest

from mem_cache.errors import IntegrityError
from mem_cache.lru import Link, LruList


class _Item(Link):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


def _filled(names: str) -> tuple[LruList[_Item], dict[str, _Item]]:
    items: LruList[_Item] = LruList()
    by_name = {name: _Item(name) for name in names}
    for item in by_name.values():
        items.push_newest(item)
    return items, by_name


def _order(items: LruList[_Item]) -> str:
    items.check()
    return "".join(item.name for item in items)


def test_an_empty_list_has_no_oldest() -> None:
    items: LruList[_Item] = LruList()

    assert items.oldest is None
    assert len(items) == 0
    assert _order(items) == ""


def test_items_stand_from_oldest_to_newest() -> None:
    items, by_name = _filled("abc")

    assert _order(items) == "abc"
    assert items.oldest is by_name["a"]
    assert len(items) == 3


def test_a_touched_item_is_the_newest() -> None:
    items, by_name = _filled("abc")

    for name, order in (("a", "bca"), ("a", "bca"), ("c", "bac")):
        items.touch(by_name[name])
        assert _order(items) == order


def test_touching_an_item_outside_adds_it() -> None:
    items, _ = _filled("ab")

    items.touch(_Item("c"))

    assert _order(items) == "abc"


def test_an_item_can_be_put_next_in_line() -> None:
    items, _ = _filled("ab")

    items.push_oldest(_Item("c"))

    assert _order(items) == "cab"


def test_a_removed_item_is_outside_and_may_come_back() -> None:
    items, by_name = _filled("abc")

    items.remove(by_name["b"])
    assert not by_name["b"].linked
    assert _order(items) == "ac"

    items.push_newest(by_name["b"])
    assert by_name["b"].linked
    assert _order(items) == "acb"


def test_an_item_enters_and_leaves_once() -> None:
    items, by_name = _filled("a")

    with pytest.raises(IntegrityError, match="to enter"):
        items.push_newest(by_name["a"])
    with pytest.raises(IntegrityError, match="to enter"):
        items.push_oldest(by_name["a"])
    items.remove(by_name["a"])
    with pytest.raises(IntegrityError, match="to leave"):
        items.remove(by_name["a"])
    assert _order(items) == ""


@pytest.mark.parametrize("link", ["newer", "older"])
@pytest.mark.parametrize("target", ["self", "none", "far"])
def test_check_finds_a_wrong_link(link: str, target: str) -> None:
    items, by_name = _filled("abcd")
    item, far = (by_name["b"], "d") if link == "newer" else (by_name["c"], "a")
    setattr(item, link, {"self": item, "none": None, "far": by_name[far]}[target])

    with pytest.raises(IntegrityError, match="list of 4 items is broken"):
        items.check()


def test_check_finds_a_wrong_length() -> None:
    items, _ = _filled("ab")

    for length in (1, 3):
        items._length = length
        with pytest.raises(IntegrityError, match="broken"):
            items.check()
