"""Tests of runtime.chat.answer_format: which format a checkpoint's answers have."""

from typing import get_args

import pytest

from runtime.chat.answer_format import answer_format
from runtime.chat.answer_formats import CALL_FORMATS, REASONING_FORMATS
from runtime.errors import ConfigError
from runtime.parser_names import ReasoningParser, ToolCallParser
from tests.runtime.chat.families import (
    DEEPSEEK_V31,
    FAMILIES,
    MISTRAL,
    QWEN3,
    family_encoder,
    family_format,
    family_tokenizer,
)
from tests.runtime.server.engine import TEMPLATE, byte_tokenizer

FOUND = {
    "qwen3": ("qwen25", "qwen3"),
    "smol": ("qwen25", None),
    "llama": ("llama3", None),
    "mistral": ("mistral", None),
    "deepseek_v3": ("deepseekv3", "deepseek-r1"),
    "deepseek_v31": ("deepseekv31", "deepseek-r1"),
    "deepseek_v32": ("deepseekv32", "deepseek-r1"),
    "gpt_oss": ("gpt-oss", "gpt-oss"),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_found_from_its_template(name: str) -> None:
    form = family_format(name)

    assert form.calls is not None
    assert (form.calls.name, form.reasoning) == FOUND[name]


def test_a_template_without_any_marks_has_no_format() -> None:
    form = answer_format(byte_tokenizer(), [TEMPLATE])

    assert (form.calls, form.reasoning) == (None, None)
    assert form.marks(tools=True) == {}


def test_calls_that_are_no_json_are_not_known() -> None:
    coder = QWEN3.replace("<tool_call>", "<tool_call><function=x>")

    assert answer_format(family_tokenizer("qwen3"), [coder]).calls is None


def test_mistrals_newer_form_is_written_where_the_template_has_it() -> None:
    newer = answer_format(family_tokenizer("mistral"), [MISTRAL + "[ARGS]"]).calls
    given = answer_format(
        family_tokenizer("mistral"), [MISTRAL + "[ARGS]"], tool_call_parser="mistral"
    )

    assert newer is not None
    assert newer.call[0].startswith(newer.openers)
    assert given.calls is newer


def test_flags_outrank_the_template() -> None:
    form = answer_format(
        family_tokenizer("deepseek_v3"),
        [DEEPSEEK_V31],
        tool_call_parser="deepseekv3",
        reasoning_parser="qwen3",
    )

    assert form.calls is CALL_FORMATS["deepseekv3"]
    assert form.reasoning == "qwen3"


def test_a_parser_whose_tokens_are_missing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--reasoning-parser qwen3: .* no token <think>"):
        answer_format(byte_tokenizer(), [TEMPLATE], reasoning_parser="qwen3")
    with pytest.raises(ConfigError, match="--tool-call-parser gpt-oss"):
        answer_format(byte_tokenizer(), [TEMPLATE], tool_call_parser="gpt-oss")


@pytest.mark.parametrize("flag", ["tool_call_parser", "reasoning_parser"])
def test_an_unknown_name_lists_the_known(flag: str) -> None:
    with pytest.raises(ConfigError, match=r"there are .*gpt-oss"):
        answer_format(byte_tokenizer(), [TEMPLATE], **{flag: "pythonic"})


def test_the_flags_have_the_names_that_there_are() -> None:
    assert set(get_args(ToolCallParser)) == {"auto", "deepseekv4", *CALL_FORMATS}
    assert set(get_args(ReasoningParser)) == {"auto", "deepseek-v4", *REASONING_FORMATS}


def test_a_prompt_says_whether_reasoning_is_open() -> None:
    tokenizer, form = family_tokenizer("deepseek_v31"), family_format("deepseek_v31")

    def reasons(text: str) -> bool:
        return form.reasons(tokenizer.encode(text).ids)

    assert reasons("<｜Assistant｜><think>")
    assert not reasons("<｜Assistant｜></think>")
    assert not reasons("hi")
    assert family_encoder("llama").shows_tools


def test_marks_of_calls_count_only_where_there_are_tools() -> None:
    form = family_format("qwen3")

    assert len(form.marks(tools=True)) == 4
    assert len(form.marks(tools=False)) == 2


def test_harmonys_calls_end_an_answer_where_there_are_tools() -> None:
    form, tokenizer = family_format("gpt_oss"), family_tokenizer("gpt_oss")

    assert form.end_ids(tools=False) == (tokenizer.token_to_id("<|return|>"),)
    assert tokenizer.token_to_id("<|call|>") in form.end_ids(tools=True)
    assert family_format("qwen3").end_ids(tools=True) == ()
