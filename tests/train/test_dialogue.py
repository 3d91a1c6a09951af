"""Right replies pass and wrong ones do not, each by its rule."""

import pytest

from tests.train.dialogue import Call, Check, Dialogue, Reply, Rule, Turn

OSLO = Call("get_weather", {"city": "Oslo"})


@pytest.mark.parametrize(
    ("rule", "expected", "reply", "passes"),
    [
        ("value", "Oslo", "Anna lives in Oslo.", True),
        ("value", "Oslo", "oslo", True),
        ("value", "Oslo", "Anna lives in Rome.", False),
        ("value", "Oslo", "In Oslo or in Rome.", False),
        ("value", "Oslo", "Osloer", False),
        ("value", "Oslo", "Oslo " + "is a very long answer " * 9, False),
        ("value", "Oslo|baker", "Anna lives in Oslo. She works as a baker.", True),
        ("value", "Oslo|baker", "Anna lives in Oslo.", False),
        ("number", "19", "12 + 7 = 19", True),
        ("number", "19", "19", True),
        ("number", "19", "119", False),
        ("number", "19", "19 - 2", False),
        ("number", "19", "none", False),
        ("yes_no", "yes", "Yes, Anna lives in Oslo.", True),
        ("yes_no", "yes", "No.", False),
        ("yes_no", "yes", "", False),
        ("exact", "The sun was cold.", " The sun was cold", True),
        ("exact", "silver fox", '"silver fox"', True),
        ("exact", "silver fox", "Silver fox", False),
        ("exact", "silver fox", "It is silver fox", False),
        ("json", '{"a":1,"b":"x"}', '{"b": "x", "a": 1}\n', True),
        ("json", '{"a":1}', '{"a":"1"}', False),
        ("json", '{"a":1}', '{"a":true}', False),
        ("json", '{"a":1}', 'Here it is: {"a":1}', False),
        ("mentions", "do not know|don't know", "I DO NOT KNOW.", True),
        ("mentions", "do not know", "I know.", False),
    ],
)
def test_a_reply_is_judged_by_its_rule(rule: Rule, expected: str, reply: str, passes: bool) -> None:
    rivals = ("Rome",) if rule == "value" else ()

    assert Check("any", rule, expected, rivals=rivals).passes(Reply(reply)) is passes


def test_a_call_counts_by_its_name_and_its_arguments() -> None:
    check = Check("tool_calls", "call", "", calls=(OSLO,))

    assert check.passes(Reply("I look.", (OSLO,)))
    assert not check.passes(Reply("", (Call("get_weather", {"city": "Rome"}),)))
    assert not check.passes(Reply("", (OSLO, OSLO)))
    assert not check.passes(Reply("It is sunny in Oslo."))


def test_where_no_tool_fits_the_reply_says_so_and_calls_none() -> None:
    check = Check("tool_calls", "call", "no tool")

    assert check.passes(Reply("I have no tool for that."))
    assert not check.passes(Reply("It is sunny."))
    assert not check.passes(Reply("I have no tool for that.", (OSLO,)))


def test_an_answer_in_place_of_a_call_is_wrong_and_the_other_way_round() -> None:
    assert not Check("facts", "value", "Oslo").passes(Reply("Oslo", (OSLO,)))


def test_a_request_pairs_results_with_their_calls() -> None:
    other = Call("get_time", {"city": "Rome"})
    turns = [
        Turn("user", "Weather and time?"),
        Turn("assistant", "", reasoning="Two calls.", tool_calls=(OSLO, other)),
        Turn("tool", "sunny"),
        Turn("tool", "9"),
    ]
    tools = [{"name": "get_weather", "parameters": {"type": "object"}}]

    body = Dialogue(turns, tools=tools, thinking=True, effort="low").request(4)

    calls = body["messages"][1]["tool_calls"]
    assert [message["tool_call_id"] for message in body["messages"][2:]] == [
        call["id"] for call in calls
    ]
    assert calls[0]["function"] == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    assert body["messages"][1]["reasoning_content"] == "Two calls."
    assert (body["thinking"], body["reasoning_effort"]) == ({"type": "enabled"}, "low")


def test_a_request_without_tools_sends_no_old_reasoning() -> None:
    turns = [Turn("user", "Hi"), Turn("assistant", "Hello!", reasoning="Talk."), Turn("user", "?")]

    body = Dialogue(turns, thinking=True).request(3)

    assert "reasoning_content" not in body["messages"][1]
