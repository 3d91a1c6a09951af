"""Tests of runtime.lang.ir."""

import re

import pytest

from runtime.lang.ir import (
    REGEX_BOOL,
    REGEX_FLOAT,
    REGEX_INT,
    REGEX_STR,
    Gen,
    Seq,
    Text,
    as_expr,
    leaves,
)


def test_plus_joins_text_and_expressions_in_order() -> None:
    joined = "a" + Gen("x") + "b" + (Gen("y") + None)

    assert leaves(joined) == (Text("a"), Gen("x"), Text("b"), Gen("y"))


def test_nested_sequences_are_flat_in_the_end() -> None:
    assert leaves(Seq((Seq((Text("a"),)), Text("b"), Seq(())))) == (Text("a"), Text("b"))


def test_nothing_else_can_be_said() -> None:
    assert as_expr(None) == Seq(())
    with pytest.raises(TypeError, match="not int"):
        as_expr(3)


@pytest.mark.parametrize(
    ("pattern", "texts", "others"),
    [
        (REGEX_INT, ("0", "-12", "+3 \n"), ("", "1.5", "x", "3x")),
        (REGEX_FLOAT, ("0", "-1.5", ".5", "+3.25 \n"), ("", "1.", "e", "1.2.3")),
        (REGEX_BOOL, ("True", "False"), ("true", "True ", "")),
        (REGEX_STR, ('""', '"a 1_b"'), ("a", '"a', '"a-b"', '"a" ')),
    ],
)
def test_the_patterns_of_the_data_types(
    pattern: str, texts: tuple[str, ...], others: tuple[str, ...]
) -> None:
    assert all(re.fullmatch(pattern, text) for text in texts)
    assert not any(re.fullmatch(pattern, text) for text in others)
