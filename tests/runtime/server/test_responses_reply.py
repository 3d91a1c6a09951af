"""Tests of runtime.server.responses_reply: deltas of a chat as items and their events."""

from typing import Any

import pytest

from runtime.chat.answer_parser import AnswerParser
from runtime.chat.marks import DSML, THINK_END
from runtime.server.chat_reply import ChoiceReply
from runtime.server.messages_thinking import recall
from runtime.server.responses_reply import ResponseOutput, response_usage
from runtime.server.runs import Tally

Json = dict[str, Any]

INVOKE = (
    '<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="s" string="true">a b</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n"
)
CALLS = f"why</think>so\n\n<｜DSML｜tool_calls>\n{INVOKE}{INVOKE}</｜DSML｜tool_calls>"
CUT = CALLS[: CALLS.index(" b")]
TOOLS: Json = {"f": {"type": "object", "properties": {"s": {"type": "string"}}}}


def run(
    text: str, *, step: int = 1, cut: bool = False, carry_reasoning: bool = False
) -> tuple[list[Json], list[Json]]:
    """Return the events and the items of an answer that comes in pieces of `step` characters."""
    text = text.replace("｜DSML｜", DSML).replace("</think>", THINK_END)
    reply = ChoiceReply(AnswerParser(reasoning=True, tools=TOOLS), call_prefix="call_")
    output = ResponseOutput(reply, carry_reasoning=carry_reasoning)
    told: list[Json] = []
    for k in range(0, len(text), step):
        ended = k + step >= len(text)
        told += output.add(reply.feed(text[k : k + step], ended=ended))
    told += output.end(cut=cut)
    return told, output.items


def kinds(told: list[Json]) -> list[str]:
    """Return the types of events; of several deltas in a row one."""
    names = [event["type"].removeprefix("response.") for event in told]
    return [name for k, name in enumerate(names) if k == 0 or name != names[k - 1]]


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_each_item_is_added_filled_and_done(step: int) -> None:
    told, items = run(CALLS, step=step)

    def part(kind: str) -> list[str]:
        inner = ["content_part.added", f"{kind}.delta", f"{kind}.done", "content_part.done"]
        return ["output_item.added", *inner, "output_item.done"]

    arguments = [f"function_call_arguments.{name}" for name in ("delta", "done")]
    call = ["output_item.added", *arguments, "output_item.done"]
    assert kinds(told) == [*part("reasoning_text"), *part("output_text"), *call, *call]
    assert [item["type"] for item in items] == ["reasoning", "message", *["function_call"] * 2]
    assert {item["status"] for item in items} == {"completed"}
    assert [event["item"] for event in told if event["type"].endswith("item.done")] == items


def test_items_have_their_text_and_ids() -> None:
    told, [why, so, call, other] = run(CALLS)

    assert why["content"] == [{"type": "reasoning_text", "text": "why"}]
    assert why["summary"] == []
    part = {"type": "output_text", "text": "so", "annotations": [], "logprobs": []}
    assert so["content"] == [part]
    assert so["role"] == "assistant"
    assert (call["name"], call["arguments"]) == ("f", '{"s": "a b"}')
    prefixes = [item["id"].split("_")[0] for item in (why, so, call, other)]
    assert prefixes == ["rs", "msg", "fc", "fc"]
    assert call["call_id"].startswith("call_")
    assert len({call["call_id"], other["call_id"], call["id"], other["id"]}) == 4
    for event in told:
        item = (why, so, call, other)[event["output_index"]]
        assert event.get("item_id", item["id"]) == item["id"]


def test_deltas_spell_what_is_done() -> None:
    told, _ = run(CALLS)

    for index, key in enumerate(("text", "text", "arguments", "arguments")):
        mine = [event for event in told if event["output_index"] == index]
        spelled = "".join(event["delta"] for event in mine if event["type"].endswith(".delta"))
        [done] = [e for e in mine if e["type"].endswith(("text.done", "arguments.done"))]
        assert done[key] == spelled


def test_a_call_is_done_as_soon_as_it_is_whole() -> None:
    output = ResponseOutput(reply := ChoiceReply(AnswerParser(reasoning=False, tools=TOOLS)))
    begun = CALLS.partition("</think>")[2].rpartition(INVOKE)[0]

    told = list(output.add(reply.feed(begun.replace("｜DSML｜", DSML), ended=False)))

    assert told[-1]["type"] == "response.output_item.done"
    assert told[-1]["item"]["status"] == "completed"


@pytest.mark.parametrize(
    ("text", "last"),
    [("wh", "reasoning"), ("why</think>s", "message"), (CUT, "call")],
)
def test_what_was_cut_off_is_incomplete(text: str, last: str) -> None:
    told, items = run(text, cut=True)

    *whole, cut = items
    assert cut["type"].endswith(last)
    assert cut["status"] == "incomplete"
    assert all(item["status"] == "completed" for item in whole)
    assert "response.function_call_arguments.done" not in kinds(told)


def test_an_empty_answer_has_no_items() -> None:
    assert run("</think>") == ([], [])


def test_reasoning_can_be_carried() -> None:
    _, [item] = run("why</think>", carry_reasoning=True)

    assert recall("", item["encrypted_content"]) == "why"


def test_logprobs_stand_with_the_text_and_in_its_part() -> None:
    output = ResponseOutput(ChoiceReply(AnswerParser(reasoning=False, tools={})))
    one, two, three = ({"token": name} for name in "abc")
    told = list(output.add([{"content": "a"}], [one]))
    told += output.add([], [two])
    told += output.add([{"content": "c"}])
    told += output.add([], [three])
    told += output.end()

    deltas = [e["logprobs"] for e in told if e["type"] == "response.output_text.delta"]
    assert deltas == [[one], [two]]
    [done] = [e["logprobs"] for e in told if e["type"] == "response.output_text.done"]
    assert done == output.items[0]["content"][0]["logprobs"] == [one, two, three]


def test_usage_counts_reasoning_and_what_came_from_the_cache() -> None:
    assert response_usage(Tally(10, 4, 5, 2)) == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 15,
    }
