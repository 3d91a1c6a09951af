"""Sliced JSON is the JSON of the whole, and no slice is long."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import runtime.server.json_slices as subject
from runtime.server.json_slices import LazyRows, held_bytes, is_long, json_slices

ROWS = [[[-0.5, k, "t"]] * 20 for k in range(3000)]
LONG = {
    "a": 1,
    "b": {"rows": ROWS, "none": None},
    "c": [{"rows": ROWS[:900]}, {"d": "é"}],
    "ids": list(range(50_000)),
}


@pytest.mark.parametrize("value", [LONG, [LONG, {}], ROWS, [], {}, "text", 3, {"x": ROWS}])
def test_the_slices_are_the_json_of_the_whole(value: Any) -> None:
    assert msgspec.json.decode(b"".join(json_slices(value))) == value


def test_no_slice_of_a_long_value_is_long() -> None:
    sizes = [len(piece) for piece in json_slices(LONG)]

    assert max(sizes) < len(msgspec.json.encode(LONG)) / 10


@pytest.mark.parametrize("item", [7, [7], "text", ["long" * 64] * 3])
def test_items_of_a_list_are_looked_at_in_their_own_slice(
    item: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    size = subject._size

    def noted(value: Any, most: int) -> int:
        looked.append(size(value, most))
        return looked[-1]

    monkeypatch.setattr(subject, "_size", noted)
    pieces = json_slices([item] * 30_000)
    work: list[int] = []
    for _ in pieces:
        work.append(sum(looked))
        looked.clear()

    assert len(work) > 4
    # Those inside an item are counted with it and by themselves.
    assert max(work[1:]) <= 2 * subject.SLICE_ITEMS


def test_rows_are_made_as_they_are_encoded() -> None:
    made: list[int] = []

    def part(start: int, stop: int) -> list[Any]:
        made.append(stop - start)
        return ROWS[start:stop]

    lazy = {"meta": {"rows": LazyRows(len(ROWS), 60, part, held_bytes=7), "n": 1}}
    assert is_long(lazy)
    assert held_bytes([lazy, lazy]) == 14
    pieces = json_slices(lazy)
    next(pieces)
    assert made == []

    assert msgspec.json.decode(b"{" + b"".join(pieces)) == {"meta": {"rows": ROWS, "n": 1}}
    assert sum(made) == len(ROWS)
    assert max(made) <= subject.SLICE_ITEMS // 60


def test_what_is_held_is_looked_for_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []
    monkeypatch.setattr(subject, "held_bytes", lambda *a, **k: looked.append(a) or held(*a, **k))
    held = held_bytes
    entries = [{"token": "a", "top_logprobs": [{"token": "b"}] * 20}] * 1000

    assert held({"choices": [{"logprobs": {"content": entries}}] * 2}) == 0

    assert len(looked) < 10


def test_ordinary_replies_are_not_sliced() -> None:
    assert not is_long({"text": "a" * 10_000, "output_ids": list(range(4000)), "meta_info": {}})
    assert is_long(LONG)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=30,
)


@settings(max_examples=25, deadline=None)
@given(VALUES)
def test_any_value_sliced_small_reads_the_same(value: Any) -> None:
    before = subject.SLICE_ITEMS, subject._SHORT_ITEMS
    subject.SLICE_ITEMS, subject._SHORT_ITEMS = 4, 5
    try:
        assert msgspec.json.decode(b"".join(json_slices(value))) == value
    finally:
        subject.SLICE_ITEMS, subject._SHORT_ITEMS = before
