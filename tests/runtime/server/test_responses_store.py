"""Tests of runtime.server.responses_store: what is kept, how long, and that it is counted."""

from random import Random

import pytest

from runtime.errors import BadRequest, NotFound
from runtime.server.responses_items import Item, ItemPart
from runtime.server.responses_store import ResponseStore, Stored, history

OWNER = "a namespace"


def said(text: str, name: str | None = None) -> Item:
    return Item(type="message", id=name, role="user", content=text)


def keep(
    store: ResponseStore, name: str, *, after: str | None = None, reply: bytes = b"{}"
) -> None:
    """Store a response that says its name."""
    previous = None if after is None else store.get(after, OWNER)
    added, output = [said(f"to {name}")], [said(f"by {name}", f"msg_{name}")]
    store.put(name, OWNER, reply, added=added, output=output, previous=previous)
    store.check()


def told(stored: Stored) -> list[object]:
    return [item.content for item in history(stored)]


def test_a_history_is_the_turns_in_order() -> None:
    store = ResponseStore()
    keep(store, "a")
    keep(store, "b", after="a")
    keep(store, "c", after="a")

    assert told(store.get("c", OWNER)) == ["to a", "by a", "to c", "by c"]
    assert told(store.get("b", OWNER)) == ["to a", "by a", "to b", "by b"]
    assert history(None) == []
    assert store.get("a", OWNER).reply == b"{}"


def test_items_come_back_as_they_were() -> None:
    store = ResponseStore()
    items = [
        Item(type="function_call", call_id="c", name="f", arguments='{"x": "é"}', id="fc_1"),
        Item(type="reasoning", content=[ItemPart("reasoning_text", "why")], summary=[]),
    ]

    store.put("a", OWNER, b"{}", added=[], output=items, previous=None)

    assert history(store.get("a", OWNER)) == items


def test_the_least_recently_used_goes_first() -> None:
    store = ResponseStore(max_responses=2)
    keep(store, "a")
    keep(store, "b")
    store.get("a", OWNER)
    keep(store, "c")

    assert len(store) == 2
    assert store.get("a", OWNER).name == "a"
    with pytest.raises(NotFound, match="do not survive a restart") as missing:
        store.get("b", OWNER)
    assert missing.value.code == "response_not_found"


def test_a_history_outlives_the_places_of_its_turns() -> None:
    store = ResponseStore(max_responses=1)
    for name, after in (("a", None), ("b", "a"), ("c", "b")):
        keep(store, name, after=after)

    assert told(store.get("c", OWNER)) == ["to a", "by a", "to b", "by b", "to c", "by c"]
    store.delete("c", OWNER)
    store.check()
    assert (len(store), store.total_bytes) == (0, 0)


def test_bytes_are_bounded_too() -> None:
    store = ResponseStore(max_bytes=20_000)
    for number in range(40):
        keep(store, str(number), reply=b"x" * 1000)
        assert store.total_bytes <= 20_000
    kept = len(store)
    keep(store, "huge", reply=b"x" * 30_000)

    assert kept > 5
    assert (len(store), store.total_bytes) == (0, 0)


def test_what_is_deleted_is_gone_but_can_be_continued_by_what_continued_it() -> None:
    store = ResponseStore()
    keep(store, "a")
    keep(store, "b", after="a")

    store.delete("a", OWNER)

    store.check()
    for call in (store.get, store.delete):
        with pytest.raises(NotFound):
            call("a", OWNER)
    assert told(store.get("b", OWNER)) == ["to a", "by a", "to b", "by b"]


def test_a_response_may_be_deleted_while_its_continuation_is_made() -> None:
    store = ResponseStore()
    keep(store, "a")
    keep(store, "b", after="a")
    previous = store.get("b", OWNER)
    for name in ("a", "b"):
        store.delete(name, OWNER)
    assert store.total_bytes == 0

    for name in ("c", "d"):
        store.put(name, OWNER, b"{}", added=[], output=[said(f"by {name}")], previous=previous)
        store.check()

    assert told(store.get("d", OWNER)) == ["to a", "by a", "to b", "by b", "by d"]
    for name in ("c", "d"):
        store.delete(name, OWNER)
        store.check()
    assert store.total_bytes == 0


def test_a_reference_is_the_item_and_counts_as_a_use() -> None:
    store = ResponseStore(max_responses=2)
    keep(store, "a")
    keep(store, "b")
    plain, reference = said("hi"), Item(type="item_reference", id="msg_a")

    found = store.resolve([plain, reference, Item(id="msg_a")], OWNER)

    assert [item.content for item in found] == ["hi", "by a", "by a"]
    keep(store, "c")
    assert store.get("a", OWNER).name == "a"
    with pytest.raises(BadRequest, match=r"input\[1\]: there is no item 'msg_b'") as refused:
        store.resolve([plain, Item(id="msg_b")], OWNER)
    assert (refused.value.param, refused.value.code) == ("input", "item_not_found")
    with pytest.raises(BadRequest, match="there is no item ''"):
        store.resolve([Item(type="item_reference")], OWNER)


def test_the_owner_alone_finds_a_response_and_its_items() -> None:
    store = ResponseStore()
    keep(store, "a")

    for call in (store.get, store.delete):
        with pytest.raises(NotFound):
            call("a", "another")
    with pytest.raises(BadRequest, match="there is no item 'msg_a'"):
        store.resolve([Item(id="msg_a")], "another")
    assert store.get("a", OWNER).name == "a"


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_uses_keeps_the_counts(seed: int) -> None:
    random = Random(seed)
    store = ResponseStore(max_responses=8, max_bytes=15_000)
    names: list[str] = []
    for number in range(200):
        alive = [name for name in names if _is_kept(store, name)]
        match random.randrange(5):
            case 0 if alive:
                store.delete(random.choice(alive), OWNER)
            case 1 if alive:
                store.resolve([Item(id=f"msg_{random.choice(alive)}")], OWNER)
            case _:
                after = random.choice([None, *alive])
                keep(store, str(number), after=after, reply=b"x" * random.randrange(4000))
                names.append(str(number))
        store.check()


def _is_kept(store: ResponseStore, name: str) -> bool:
    try:
        store.get(name, OWNER)
    except NotFound:
        return False
    return True
