"""Names of sglang that are not here say what replaces them."""

import importlib
from typing import Any

import pytest

lang: Any = importlib.import_module("runtime.lang")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Runtime", r"lang\.Local\(Engine"),
        ("Engine", r"runtime\.engine"),
        ("Anthropic", r"lang\.OpenAI"),
        ("separate_reasoning", "reasoning_content"),
    ],
)
def test_a_name_of_sglang_says_what_replaces_it(name: str, hint: str) -> None:
    with pytest.raises(ImportError, match=f"no '{name}': .*{hint}"):
        getattr(lang, name)


def test_an_import_of_such_a_name_says_so_too() -> None:
    with pytest.raises(ImportError, match=r"lang\.Local\(Engine"):
        from runtime.lang import Runtime  # pyright: ignore  # noqa: F401


def test_a_name_that_nobody_knows_is_just_missing() -> None:
    with pytest.raises(AttributeError, match=r"has no 'nonsense'$"):
        print(lang.nonsense)
    assert not hasattr(lang, "nonsense")
