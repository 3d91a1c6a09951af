"""Tests of runtime.lang.ir."""

import pytest

from runtime.lang.ir import Gen, Seq, Text, as_expr, leaves


def test_plus_joins_text_and_expressions_in_order() -> None:
    joined = "a" + Gen("x") + "b" + (Gen("y") + None)

    assert leaves(joined) == (Text("a"), Gen("x"), Text("b"), Gen("y"))


def test_nested_sequences_are_flat_in_the_end() -> None:
    assert leaves(Seq((Seq((Text("a"),)), Text("b"), Seq(())))) == (Text("a"), Text("b"))


def test_nothing_else_can_be_said() -> None:
    assert as_expr(None) == Seq(())
    with pytest.raises(TypeError, match="not int"):
        as_expr(3)
