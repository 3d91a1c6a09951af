"""Replies of a server are read and judged: right, ended by themselves, of the form asked for."""

import json
from typing import Any

import pytest

from tests.evaluate.answer import Answer, Choice, judge, read_answer
from tests.evaluate.case import Case, Cell, make_cases
from tests.train.dialogue import Call, Check, Dialogue, Reply, Turn


def completion(
    content: str | None, *calls: tuple[str, str], finish: str = "stop", **more: Any
) -> dict[str, Any]:
    """Return a reply of `/v1/chat/completions`; a call is a name and JSON."""
    message: dict[str, Any] = {"role": "assistant", "content": content, **more}
    if calls:
        message["tool_calls"] = [
            {"id": "c", "type": "function", "function": {"name": name, "arguments": text}}
            for name, text in calls
        ]
    return {
        "choices": [{"message": message, "finish_reason": finish, "token_ids": [5, 6, 1]}],
        "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}},
    }


def case_of(check: Check, **dialogue: Any) -> Case:
    """Return a case of one question."""
    turns = [Turn("user", "?"), Turn("assistant", "", check=check)]
    return Case("one", check.task, check.task, None, Dialogue(turns, **dialogue), 1)


def test_an_answer_is_read_whole() -> None:
    answer = read_answer(completion(None, ("add", '{"a": 1}'), finish="tool_calls"))

    assert answer == Answer(Reply("", (Call("add", {"a": 1}),)), "tool_calls", 0, (5, 6, 1), 9, 4)


def test_log_probabilities_are_read_where_they_were_asked_for() -> None:
    likeliest = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.5}]
    raw = completion("a")
    raw["choices"][0]["logprobs"] = {
        "content": [{"token": "a", "logprob": -0.5, "top_logprobs": likeliest}]
    }

    assert read_answer(raw).choices == (Choice("a", -0.5, {"a": -0.5, "b": -1.5}),)
    raw["choices"][0]["logprobs"] = None
    assert read_answer(raw).choices == ()


@pytest.mark.parametrize("arguments", ["{", "[1]", "3"])
def test_arguments_that_are_no_object_are_an_invalid_call(arguments: str) -> None:
    answer = read_answer(completion("", ("add", arguments)))

    assert (answer.invalid_calls, answer.reply.calls) == (1, ())


def test_what_the_server_found_invalid_is_neither_right_nor_valid() -> None:
    wanted = Call("add", {"a": 1})
    case = case_of(
        Check("tool_calls", "call", "", calls=(wanted,)),
        tools=[{"name": "add", "parameters": {"type": "object"}}],
    )
    good = read_answer(completion("", ("add", '{"a": 1}')))
    bad = read_answer(completion("", ("add", '{"a": 1}'), invalid_tool_calls=[{"name": "x"}]))

    assert (judge(case, good).right, judge(case, good).valid) == (True, True)
    assert (judge(case, bad).right, judge(case, bad).valid) == (False, False)


@pytest.mark.parametrize(
    ("name", "arguments"), [("sub", {"a": 1}), ("add", {"a": "1"}), ("add", {})]
)
def test_a_call_is_valid_only_of_an_offered_tool_and_its_schema(
    name: str, arguments: dict[str, Any]
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    check = Check("tool_calls", "call", "", calls=(Call(name, arguments),))
    case = case_of(check, tools=[{"name": "add", "parameters": schema}])

    verdict = judge(case, read_answer(completion("", (name, json.dumps(arguments)))))

    assert (verdict.right, verdict.valid) == (True, False)


@pytest.mark.parametrize(
    ("said", "right", "valid"),
    [
        ('{"age":5}', True, True),
        ('{"age": 6}', False, True),
        ('{"age":"5"}', False, False),
        ("five", False, False),
    ],
)
def test_json_is_valid_if_it_fits_the_schema(said: str, right: bool, valid: bool) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    case = case_of(Check("json_format", "json", '{"age":5}'), response_format=form)

    verdict = judge(case, read_answer(completion(said)))

    assert (verdict.right, verdict.valid) == (right, valid)


@pytest.mark.parametrize(
    ("finish", "stopped"), [("stop", True), ("tool_calls", True), ("length", False)]
)
def test_only_an_answer_that_was_cut_off_did_not_stop(finish: str, stopped: bool) -> None:
    case = case_of(Check("sums", "number", "7"))

    verdict = judge(case, read_answer(completion("7", finish=finish)))

    assert (verdict.stopped, verdict.valid, verdict.right) == (stopped, None, True)


def test_where_no_tool_fits_no_form_is_asked_for() -> None:
    case = case_of(Check("tool_calls", "call", "no tool"))

    assert judge(case, read_answer(completion("I have no tool for that."))).valid is None


def test_every_reference_answer_is_judged_right_and_valid() -> None:
    cells = [Cell(task, None, 5) for task in ("json_format", "json_schema", "tool_calls")]
    for case in make_cases(cells, seed=2):
        turn = case.dialogue.turns[case.turn]
        calls = [(call.name, json.dumps(call.arguments)) for call in turn.tool_calls]

        verdict = judge(case, read_answer(completion(turn.content, *calls)))

        assert verdict.right
        assert verdict.valid is not False
