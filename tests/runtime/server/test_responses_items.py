"""Tests of runtime.server.responses_items: what an item is, and what is refused of it."""

from typing import Any

import msgspec
import pytest

from runtime.errors import BadRequest
from runtime.server.messages_thinking import carry
from runtime.server.responses_items import Item, ItemPart, texts


def item(**fields: Any) -> Item:
    return msgspec.convert(fields, Item)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"role": "user", "content": "x"}, "message"),
        ({"role": "user", "id": "msg_1", "content": "x"}, "message"),
        ({"id": "msg_1"}, "item_reference"),
        ({"type": "function_call", "id": "fc_1"}, "function_call"),
        ({}, "message"),
    ],
)
def test_an_item_without_a_type_is_a_message_or_a_reference(
    fields: dict[str, Any], kind: str
) -> None:
    assert item(**fields).kind == kind


def test_reasoning_is_read_from_its_text_or_from_what_carries_it() -> None:
    part = {"type": "reasoning_text", "text": "why"}

    assert item(content=[part, part]).reasoning("x") == "whywhy"
    assert item(content=[part], encrypted_content=carry("other")).reasoning("x") == "why"
    assert item(encrypted_content=carry("why")).reasoning("x") == "why"
    assert item(encrypted_content="of another server").reasoning("x") == ""
    assert item(summary=[{"type": "summary_text", "text": "short"}]).reasoning("x") == ""


def test_reasoning_that_was_tampered_with_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"input\[3\].encrypted_content") as refused:
        item(encrypted_content="thinking:***").reasoning("input[3]")
    assert refused.value.param == "input"
    with pytest.raises(BadRequest, match="the type 'text' is not supported"):
        item(content=[{"type": "text", "text": "x"}]).reasoning("input[3]")


def test_texts_are_read_from_every_form_of_content() -> None:
    parts = [ItemPart("input_text", "a"), ItemPart("output_text", "b"), ItemPart("text", "c")]

    assert texts("x", "w") == ["x"]
    assert texts(parts, "w") == ["a", "b", "c"]
    assert texts([], "w") == []


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "w is missing"),
        ([ItemPart("input_text")], r"w\[0\].text is missing"),
        ([ItemPart("input_text", "a"), ItemPart("input_image")], r"w\[1\]: the type 'input_image'"),
        ([ItemPart("input_file")], r"w\[0\]: the type 'input_file' is not supported"),
        ([ItemPart("refusal")], "the type 'refusal'"),
    ],
)
def test_anything_but_text_is_refused_by_its_name(content: Any, told: str) -> None:
    with pytest.raises(BadRequest, match=told) as refused:
        texts(content, "w")
    assert refused.value.param == "input"
