"""Cases are held-out dialogues, and their requests are what a client would send."""

import pytest

from tests.evaluate.case import Case, Cell, make_cases, make_cells
from tests.train.dialogue import Reply


def _cases(task: str, tokens: int | None, n: int = 4) -> list[Case]:
    return list(make_cases([Cell(task, tokens, n)], seed=3))


def test_only_tasks_about_something_far_away_or_long_come_in_every_distance() -> None:
    cells = make_cells(("overview", "votes", "sums"), (64, 512), 5)

    long = [Cell(task, place, 5) for task in ("overview", "votes") for place in (64, 512)]
    assert cells == [*long, Cell("sums", None, 5)]


@pytest.mark.parametrize("task", ["pairs", "json_schema", "tool_calls"])
def test_the_reference_answer_passes_and_is_not_in_the_request(task: str) -> None:
    for case in _cases(task, 300 if task == "pairs" else None):
        wanted = case.dialogue.turns[case.turn]

        assert case.check.passes(Reply(wanted.content, wanted.tool_calls))
        messages = case.body()["messages"]
        assert len(messages) == case.turn
        assert messages[-1]["role"] in ("user", "tool")


def test_keys_name_cases_once_and_say_the_same_again() -> None:
    keys = [case.key for case in _cases("tool_calls", None, 6)]

    assert len(set(keys)) == len(keys) > 6, "calls and what is said of their results"
    assert keys == [case.key for case in _cases("tool_calls", None, 6)]


def test_rows_tell_json_with_a_schema_from_json_without() -> None:
    assert {case.row for case in _cases("json_schema", None)} == {"json_schema"}
    assert {case.row for case in _cases("json_format", None)} == {"json_format"}
    assert {case.row for case in _cases("tool_calls", None)} >= {"tool_calls", "tool_answers"}


def test_the_turn_before_is_a_beginning_of_the_same_conversation() -> None:
    [case, *_] = _cases("needle", 500)
    earlier = case.earlier()
    assert earlier is not None

    messages = case.body()["messages"]
    assert messages[: len(earlier["messages"])] == earlier["messages"]
    assert messages[len(earlier["messages"])]["role"] == "assistant"


def test_a_first_turn_has_none_before() -> None:
    assert any(case.earlier() is None for case in _cases("sums", None, 8))


def test_a_sibling_differs_in_the_last_message_alone() -> None:
    for case in _cases("tool_calls", None):
        body, sibling = case.body(), case.sibling()

        assert sibling["messages"][:-1] == body["messages"][:-1]
        assert sibling["messages"][-1]["content"] != body["messages"][-1]["content"]
        assert sibling["messages"][-1]["role"] == body["messages"][-1]["role"]
        assert sibling["tools"] == body["tools"]


def test_thinking_is_asked_for() -> None:
    [case] = make_cases([Cell("sums", None, 1)], seed=1, thinking="low")

    assert case.body()["thinking"] == {"type": "enabled"}
    assert case.body()["reasoning_effort"] == "low"
