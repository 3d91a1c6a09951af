"""Tests of runtime.server.responses_state: the response object from its beginning to its end."""

from typing import Any

import msgspec
import pytest

from runtime.errors import BadRequest, QueueFull, RequestError, RequestFailed
from runtime.server.responses_schema import ResponsesBody, ResponseTool
from runtime.server.responses_state import failed, finished, response_object
from runtime.server.runs import Tally

ITEMS = [{"type": "message"}]


def head(**fields: Any) -> dict[str, Any]:
    body = msgspec.convert({"input": "hi", **fields}, ResponsesBody)
    made = response_object(body, name="resp_1", created=5, model="tiny", temperature=0.5, top_p=1.0)
    return msgspec.json.decode(msgspec.json.encode(made))


def test_what_was_asked_for_is_told() -> None:
    told = head(
        instructions="i",
        metadata={"a": "b"},
        store=False,
        tool_choice={"type": "function", "name": "f"},
        tools=[{"type": "function", "name": "f"}],
        text={"format": {"type": "json_schema", "schema": {}}},
        reasoning={"effort": "low"},
        previous_response_id="resp_0",
        parallel_tool_calls=False,
    )

    assert (told["instructions"], told["metadata"], told["store"]) == ("i", {"a": "b"}, False)
    assert told["tool_choice"] == {"type": "function", "name": "f"}
    assert told["tools"][0]["name"] == "f"
    assert told["text"] == {"format": {"type": "json_schema", "schema": {}}}
    assert told["reasoning"] == {"effort": "low", "summary": None}
    assert (told["previous_response_id"], told["parallel_tool_calls"]) == ("resp_0", False)
    assert (told["id"], told["created_at"], told["temperature"]) == ("resp_1", 5, 0.5)


def test_what_was_not_asked_for_has_its_default() -> None:
    told = head()

    assert (told["status"], told["output"], told["usage"]) == ("in_progress", [], None)
    assert (told["tools"], told["tool_choice"]) == ([], "auto")
    assert told["text"] == {"format": {"type": "text"}}
    assert (told["store"], told["parallel_tool_calls"]) == (True, True)


def test_an_answer_is_completed_or_cut() -> None:
    whole = finished(head(), ITEMS, Tally(3, 1, 2), cut=False, invalid=[])
    cut = finished(head(), ITEMS, Tally(), cut=True, invalid=[{"name": "f"}])

    assert (whole["status"], whole["output"]) == ("completed", ITEMS)
    assert (whole["usage"]["total_tokens"], whole["incomplete_details"]) == (5, None)
    assert whole["completed_at"] >= 5
    assert "invalid_tool_calls" not in whole
    assert (cut["status"], cut["completed_at"]) == ("incomplete", None)
    assert cut["incomplete_details"] == {"reason": "max_output_tokens"}
    assert cut["invalid_tool_calls"] == [{"name": "f"}]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestFailed("x"), "server_error"),
        (QueueFull("x"), "rate_limit_exceeded"),
        (BadRequest("x"), "invalid_prompt"),
    ],
)
def test_a_failure_is_told(error: RequestError, code: str) -> None:
    told = failed(head(), error)

    assert told["status"] == "failed"
    assert told["error"] == {"code": code, "message": "x"}


def test_a_schema_too_deep_to_be_written_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(2000):
        deep = {"a": deep}
    body = ResponsesBody(input="x", tools=[ResponseTool("function", "f", parameters=deep)])

    with pytest.raises(BadRequest, match="tools: nested too deeply"):
        response_object(body, name="", created=0, model="", temperature=0, top_p=0)
