"""The reference of the language says every parameter, dtype, method and call that there is."""

import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from runtime.lang.choices import ChoicesMethod
from runtime.lang.openai_endpoint import DEFAULT_TOKENS
from runtime.lang.sampling import FIELDS
from runtime.lang.script import JOIN_MODES, Forks, Script
from runtime.lang.words import _PATTERNS  # pyright: ignore[reportPrivateUsage]
from runtime.sampling import SamplingSpec
from runtime.server.native_schema import DEFAULT_NEW_TOKENS
from tests.testing.documents import section, text_of

lang: Any = importlib.import_module("runtime.lang")
choices = importlib.import_module("runtime.lang.choices")
PAGE = "runtime/lang/REFERENCE.md"
# Sections whose parameters have their defaults in Python.
WITH_DEFAULTS = (("select", lang.select), ("Programs and batches", lang.Program.run_batch))
# In the tables under another name, or refused.
ELSEWHERE = {"AsyncState", "State", "Program", "Backend", "RuntimeEndpoint", "image", "video"}


def rows(heading: str, column: int = 0) -> list[str]:
    """Return a column of the table of a section, without the head."""
    lines = re.findall(r"^\| (.*) \|$", section(PAGE, heading), re.MULTILINE)
    return [line.split(" | ")[column] for line in lines[1:]]


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the named parameters of a function by name."""
    found = inspect.signature(function).parameters
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: p for name, p in found.items() if p.kind in named and name != "self"}


def test_the_table_of_gen_has_its_parameters_in_order() -> None:
    said = [cell.strip("`") for cell in rows("gen")]
    positional = list(parameters(lang.gen))

    assert said[: len(positional)] == positional
    assert set(said) == {*positional, *FIELDS}
    assert len(set(said)) == len(said)


def test_the_table_of_select_has_its_parameters_in_order() -> None:
    assert [cell.strip("`") for cell in rows("select")] == list(parameters(lang.select))


def test_the_parameters_of_shorthands_are_in_the_text() -> None:
    for word in (lang.gen_int, lang.gen_string):
        names = [f"`{name}`" for name in parameters(word)]
        assert ", ".join(names[:-1]) + f" and {names[-1]}" in " ".join(section(PAGE, "gen").split())


def test_every_dtype_is_in_its_table_with_its_pattern() -> None:
    said = [tuple(re.findall(r'"(\w+)"', cell)) for cell in rows("dtypes")]
    patterns = [getattr(lang, cell.strip("`")) for cell in rows("dtypes", 2)]

    assert {name: p for (name,), p in zip(said, patterns, strict=True)} == _PATTERNS


def test_every_choices_method_is_in_its_table() -> None:
    found = vars(choices).items()
    methods = {name for name, value in found if isinstance(value, ChoicesMethod)}

    assert {cell.strip("`") for cell in rows("Choices methods")} == methods


@pytest.mark.parametrize("name", ["fork", "copy"])
def test_the_parameters_of_branches_are_in_their_table(name: str) -> None:
    given = ", ".join(parameters(getattr(Script, name)))

    assert f"`s.{name}({given})`" in rows("fork, copy and join")


def test_the_parameters_and_modes_of_a_join_are_in_the_table() -> None:
    given = ", ".join(parameters(Forks.join))
    calls = dict(zip(rows("fork, copy and join"), rows("fork, copy and join", 1), strict=True))

    assert set(re.findall(r'"(\w+)"', calls[f"`forks.join({given})`"])) == set(JOIN_MODES)


def test_the_parameters_of_a_batch_are_in_their_table() -> None:
    said = {cell.strip("`") for cell in rows("Programs and batches")}

    assert said == set(parameters(lang.Program.run_batch)) - {"batch"}


def test_the_defaults_that_python_has_are_those_of_the_tables() -> None:
    for heading, function in WITH_DEFAULTS:
        said = dict(zip(rows(heading), rows(heading, 1), strict=True))
        for name, parameter in parameters(function).items():
            default = parameter.default
            shown = said.get(f"`{name}`", "").strip("`")
            if isinstance(default, bool | float | str) and shown:
                assert shown == (f'"{default}"' if isinstance(default, str) else repr(default))


def test_every_name_of_the_package_is_on_the_page_or_in_the_readme() -> None:
    text = text_of(PAGE) + text_of("runtime/lang/README.md")
    missing = [name for name in lang.__all__ if not re.search(rf"\b{name}\b", text)]

    assert set(missing) <= ELSEWHERE


def test_the_defaults_that_servers_have_are_those_of_the_table() -> None:
    said = dict(zip(rows("gen"), rows("gen", 1), strict=True))
    spec = SamplingSpec()

    assert said["`max_tokens`"] == str(DEFAULT_NEW_TOKENS) == str(DEFAULT_TOKENS)
    for name in ("n", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"):
        assert said[f"`{name}`"] == str(getattr(spec, name))
