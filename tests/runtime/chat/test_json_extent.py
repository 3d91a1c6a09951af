"""Tests of runtime.chat.json_extent."""

import json
from random import Random

import pytest

from runtime.chat.json_extent import JsonExtent

VALUES = ['"a\\"}b"', "{}", '{"a": [1, "]"], "b": {"c": null}}', "[[], {}]", "12", "true", '""']


@pytest.mark.parametrize("value", VALUES)
def test_a_value_ends_where_its_json_does(value: str) -> None:
    json.loads(value)
    for rest in (", 1", "}", "  x"):
        extent = JsonExtent()

        assert extent.take(value + rest, 0) == len(value)
        assert extent.ended


@pytest.mark.parametrize("value", VALUES)
def test_pieces_change_nothing(value: str) -> None:
    random = Random(value)
    for _ in range(20):
        cut = random.randrange(len(value))
        extent = JsonExtent()

        assert extent.take(value[:cut], 0) == cut
        assert extent.take(value[cut:] + ",", 0) == len(value) - cut
        assert extent.ended


def test_it_says_whether_it_stands_inside_a_string() -> None:
    extent = JsonExtent()

    extent.take('{"a\\"', 0)

    assert extent.in_string
    extent.take('"', 0)
    assert not extent.in_string
