"""Classes of characters are as narrow as both ECMA-262 and Python have them."""

import functools
import re
from bisect import bisect_left, bisect_right

import pytest

from runtime.grammar.ebnf import Ranges, common
from runtime.grammar.regex_classes import ANY_BUT_LINE_ENDS, POSSIBLE, SURE, wide

# Where letters, digits and blanks begin and end; what is left out is alike throughout.
CODES = [
    *range(0x3200), *range(0xA4C0, 0xAC10), *range(0xD7A0, 0xD800), *range(0xF8F0, 0x10000),
    *range(0x1D7C0, 0x1D800), *range(0x1F000, 0x1FC00), *range(0x2FFF0, 0x30010),
]  # fmt: skip
# Python's classes, which have more of Unicode than ECMA-262's.
EVERY = "".join(map(chr, CODES))


def members(ranges: Ranges) -> set[str]:
    found = ((bisect_left(CODES, low), bisect_right(CODES, high)) for low, high in ranges)
    return set().union(*(EVERY[first:last] for first, last in found))


@functools.cache
def found_by_python(name: str, flags: int = 0) -> frozenset[str]:
    return frozenset(re.findall(rf"\{name}", EVERY, flags))


@pytest.mark.parametrize("name", SURE)
def test_what_a_class_has_for_sure_every_engine_finds(name: str) -> None:
    sure = members(SURE[name])

    assert sure <= found_by_python(name) & found_by_python(name, re.ASCII)
    assert "\ufeff" not in members(SURE["S"])  # a blank to ECMA-262 alone


@pytest.mark.parametrize("name", SURE)
def test_what_any_engine_finds_a_class_may_have(name: str) -> None:
    possible = members(POSSIBLE[name])

    assert possible >= found_by_python(name) | found_by_python(name, re.ASCII)
    assert not common(POSSIBLE[name], SURE[name.swapcase()])


def test_an_end_of_a_line_is_not_any_character() -> None:
    assert members(ANY_BUT_LINE_ENDS).isdisjoint("\n\r\u2028\u2029")


def test_in_json_a_wide_set_goes_without_what_is_escaped() -> None:
    assert wide(((0x20, 0x23),), spelt=True) == ((0x20, 0x21), (0x23, 0x23))
    assert wide(((0x20, 0x23),), spelt=False) == ((0x20, 0x23),)
