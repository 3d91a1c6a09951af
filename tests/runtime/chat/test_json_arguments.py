"""Tests of runtime.chat.json_arguments."""

import pytest

from runtime.chat.call_writer import CallPiece, InvalidCall
from runtime.chat.json_arguments import JsonArguments


def test_the_closing_brace_comes_last() -> None:
    arguments = JsonArguments("f")

    assert list(arguments.add('{"a": {')) == [CallPiece("f", '{"a": {')]
    assert list(arguments.add("}")) == []
    assert list(arguments.add("}")) == [CallPiece(None, "}")]
    assert arguments.close() == CallPiece(None, "}", ended=True)


def test_arguments_in_a_string_come_when_they_are_whole() -> None:
    arguments = JsonArguments("f")

    assert list(arguments.add('"{\\"a\\": ')) == []
    assert list(arguments.add('1}"')) == []
    assert arguments.close() == CallPiece("f", '{"a": 1}', ended=True)


@pytest.mark.parametrize("text", ["", "null"])
def test_no_arguments_are_an_empty_object(text: str) -> None:
    arguments = JsonArguments("f")
    pieces = list(arguments.add(text)) if text else []

    assert [*pieces, arguments.close()] == [CallPiece("f", "{}", ended=True)]


@pytest.mark.parametrize("text", ['"x"', '"[1]"', "nope", '{"a": 01}'])
def test_what_is_no_object_is_invalid(text: str) -> None:
    arguments = JsonArguments("f")
    begun = bool(list(arguments.add(text)))

    last = arguments.close()

    assert isinstance(last, InvalidCall)
    assert (last.name, last.begun) == ("f", begun)
