"""Tests of runtime.lang.native; what an endpoint sends is in test_endpoint.py."""

from typing import Any

import pytest

from runtime.errors import Aborted
from runtime.lang.native import choice_score, generate_fields, generation, prompt_fields
from runtime.lang.prompt import Between, Prompt, Turn, Written
from runtime.lang.sampling import Sampling

REPLY: dict[str, Any] = {"text": "hi", "output_ids": [1, 2, 9], "meta_info": {}}


@pytest.mark.parametrize(
    ("prompt", "fields"),
    [
        (Prompt(pieces=("a", "b")), {"text": "ab"}),
        (
            Prompt(pieces=("a", Written("b", (7, 8)))),
            {"prompt_parts": {"segments": ["a", (7, 8)]}},
        ),
        (
            Prompt(pieces=("a", Written("b", (7, 8), is_cut=True), "c")),
            {"prompt_parts": {"segments": ["a", {"text": "b", "ids": (7, 8)}, "c"]}},
        ),
    ],
)
def test_text_is_said_as_text_and_what_was_written_as_ids(prompt: Prompt, fields: Any) -> None:
    assert prompt_fields(prompt) == fields


def test_a_chat_is_said_as_messages() -> None:
    parts = prompt_fields(Prompt(turns=(Turn("user", "hi"),)))["prompt_parts"]

    assert parts["messages"] == [{"role": "user", "content": "hi"}]
    assert (parts["continue_final_message"], parts["add_generation_prompt"]) == (False, True)


def test_text_outside_of_turns_is_said_with_its_place() -> None:
    outside = (Between(0, "a"), Between(1, Written("b", (7,))))
    parts = prompt_fields(Prompt(turns=(Turn("user", "hi"),), open=False, between=outside))
    unfinished = prompt_fields(Prompt(turns=(Turn("user", "hi"),), open=False, unfinished=True))

    assert parts["prompt_parts"]["between"] == [
        {"after": 0, "segment": "a"},
        {"after": 1, "segment": (7,)},
    ]
    assert parts["prompt_parts"]["continue_final_message"] is False
    assert unfinished["prompt_parts"]["continue_final_message"] is True


def test_sampling_goes_under_its_native_names_and_reporting_beside_it() -> None:
    sampling = Sampling(max_tokens=3, return_logprob=True)

    fields = generate_fields(Prompt(pieces=("a",)), sampling)

    assert fields["sampling_params"] == {"max_new_tokens": 3}
    assert fields["return_logprob"] is True


@pytest.mark.parametrize(("matched", "ids"), [(None, (1, 2, 9)), (9, (1, 2)), ("i", (1, 2, 9))])
def test_the_ids_of_a_reply_spell_its_text_or_more(matched: Any, ids: Any) -> None:
    meta = {"finish_reason": {"type": "stop", "matched": matched}}

    written = generation({**REPLY, "meta_info": meta})

    assert (written.token_ids, written.is_cut) == (ids, matched == "i")


def test_a_choices_row_is_read() -> None:
    row = {"token_ids": [1], "token_texts": ["y"], "logprobs": [-1.0]}

    assert choice_score("yes", row).mean == -1.0
    assert choice_score("yes", {**row, "unconditional_logprobs": [None]}).unconditional == (None,)


@pytest.mark.parametrize("message", ["aborted on request", None])
def test_a_generation_that_was_aborted_is_none(message: str | None) -> None:
    meta = {"finish_reason": {"type": "abort", "message": message}}

    with pytest.raises(Aborted, match=message or "aborted"):
        generation({**REPLY, "meta_info": meta})


def test_answers_of_a_chat_are_said_in_their_ids_too() -> None:
    turns = Turn("user", "hi"), Turn("assistant", "so b", ("so ", Written("b", (2,))))

    parts = prompt_fields(Prompt(turns=turns))["prompt_parts"]

    assert parts["messages"][1] == {"role": "assistant", "content": "so b"}
    assert parts["written"] == [{"message": 1, "segments": ["so ", (2,)]}]
