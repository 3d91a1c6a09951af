"""Tests of runtime.lang."""

from typing import Any

import pytest

from runtime.errors import BadRequest
from runtime.lang.ir import REGEX_INT, Begin, End, Gen, Select, Text, leaves
from runtime.lang.words import (
    assistant_begin,
    assistant_end,
    gen,
    gen_int,
    gen_string,
    image,
    select,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
    video,
)


def sampling_of(expr: object) -> dict[str, object]:
    assert isinstance(expr, Gen)
    return expr.sampling.said()


def test_gen_keeps_what_was_said_and_nothing_else() -> None:
    expr = gen("x", max_tokens=3, stop=["a"], temperature=0)

    assert sampling_of(expr) == {"max_tokens": 3, "stop": ("a",), "temperature": 0}


def test_parameters_may_be_said_by_position_in_sglangs_order() -> None:
    said = sampling_of(gen("x", 16, 8, 2, ["."], [3], "a+", 0.5, 0.9, -1.0, 0.1))

    assert list(said.items()) == [
        ("max_tokens", 16),
        ("min_tokens", 8),
        ("n", 2),
        ("stop", (".",)),
        ("stop_token_ids", (3,)),
        ("stop_regex", "a+"),
        ("temperature", 0.5),
        ("top_p", 0.9),
        ("top_k", -1),
        ("min_p", 0.1),
    ]
    assert sampling_of(gen_int("x", 4, 2, "."))["n"] == 2
    assert gen("x", seed=3, max_new_tokens=2) == gen("x", 2, seed=3)


def test_gen_with_choices_is_a_select() -> None:
    assert gen("x", choices=["a", "b"]) == Select("x", ("a", "b"))


def test_gen_with_choices_checks_what_else_is_said() -> None:
    assert gen("x", 8, choices=["a"], temperature=0, stop=".") == Select("x", ("a",))

    with pytest.raises(TypeError):
        gen("x", choices=["a"], max_tokns=3)
    with pytest.raises(ValueError, match="temperature"):
        gen("x", choices=["a"], temperature=0.7)
    wrongs: list[dict[str, Any]] = [{"dtype": int}, {"regex": "a"}, {"json_schema": {}}]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="choices say the form"):
            gen("x", choices=["a"], **wrong)


def test_numbers_stop_before_the_blank_that_follows() -> None:
    said = sampling_of(gen_int("n", stop=".", max_tokens=4))

    assert said["stop"] == (".", " ", "\n")
    assert said["regex"] == REGEX_INT
    assert "stop" not in sampling_of(gen_string("s"))
    assert sampling_of(gen("f", dtype="float"))["stop"] == (" ", "\n")


def test_a_schema_may_be_an_object() -> None:
    said = sampling_of(gen("x", json_schema={"type": "object"}))

    assert said["json_schema"] == '{"type": "object"}'


def test_what_makes_no_sense_is_refused_at_once() -> None:
    wrongs: list[dict[str, Any]] = [
        {"regex": "["},
        {"dtype": "date"},
        {"dtype": int, "regex": "a"},
    ]
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"regex|dtype"):
            gen("x", **wrong)
    with pytest.raises(TypeError):
        gen("x", max_tokns=3)
    for choices, why in ((None, "none"), ([], "none"), (["a", ""], "an empty text")):
        with pytest.raises(ValueError, match=rf'select\("x"\) needs choices .*: .*{why}'):
            select("x", choices)
    with pytest.raises(ValueError, match="needs choices"):
        gen("x", choices=[])
    with pytest.raises(ValueError, match="temperature"):
        select("x", ["a"], temperature=0.7)


def test_roles_enclose_what_is_said() -> None:
    assert leaves(user("hi")) == (Begin("user"), Text("hi"), End("user"))
    assert leaves(system()) == (Begin("system"), End("system"))
    opened = assistant_begin() + Gen("x") + assistant_end()
    assert leaves(opened) == (Begin("assistant"), Gen("x"), End("assistant"))
    assert (user_begin(), user_end()) == (Begin("user"), End("user"))
    assert (system_begin(), system_end()) == (Begin("system"), End("system"))


def test_pictures_are_refused_with_a_reason() -> None:
    for word in (image, video):
        with pytest.raises(BadRequest, match="text only"):
            word("a.png")
