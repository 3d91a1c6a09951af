"""An answer as clients of `/v1/responses` see it: output items, and the events of a stream.

A whole reply has the items that these events make. Sequence numbers are added where the events are
sent.
"""

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from runtime.server.chat_reply import ChoiceReply
from runtime.server.custom_tools import InputText
from runtime.server.messages_thinking import carry
from runtime.server.runs import Tally

Event = dict[str, Any]

_PREFIXES = {
    "reasoning": "rs", "message": "msg", "function_call": "fc", "custom_tool_call": "ctc",
}  # fmt: skip
# Calls: the field that has what the tool is given, and the word that events have for it.
_GIVEN = {
    "function_call": ("arguments", "function_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
}
# The word that events have for the text of an item.
_TEXTS = {"reasoning": "reasoning_text", "message": "output_text"}


class ResponseOutput:
    """Turns the deltas of a chat into events of items.

    items  that are complete, or were cut off
    """

    def __init__(
        self,
        reply: ChoiceReply,
        *,
        carry_reasoning: bool = False,
        namespaced: Mapping[str, dict[str, str]] | None = None,
        custom: Collection[str] = (),
    ) -> None:
        """Begin without an item.

        reply            tells which calls are whole
        carry_reasoning  add the reasoning in the form that some clients send back
        namespaced       `name` and `namespace` of functions, by their full names
        custom           names of custom tools
        """
        self.items: list[dict[str, Any]] = []
        self._reply = reply
        self._carry_reasoning = carry_reasoning
        self._namespaced = namespaced or {}
        self._custom = custom
        self._input = InputText()
        self._open: dict[str, Any] | None = None
        self._pieces: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._new_logprobs: list[dict[str, Any]] = []

    def add(
        self, deltas: Iterable[dict[str, Any]], logprobs: Sequence[dict[str, Any]] = ()
    ) -> Iterator[Event]:
        """Yield the events of more deltas; `logprobs` are those of the tokens of the content."""
        self._new_logprobs += logprobs
        for delta in deltas:
            if delta.get("reasoning_content"):
                yield from self._text("reasoning", delta["reasoning_content"])
            if delta.get("content"):
                yield from self._text("message", delta["content"])
            for call in delta.get("tool_calls", ()):
                yield from self._call(call)
        if self._open is not None and self._is_whole(self._open):
            yield from self.end()

    def end(self, *, cut: bool = False) -> Iterator[Event]:
        """Yield the end of the item that is open, if one is; `cut` says that more was to come."""
        item = self._open
        if item is None:
            return
        kind, text = item["type"], "".join(self._pieces)
        done = self._is_whole(item) if kind in _GIVEN else not cut
        item["status"] = "completed" if done else "incomplete"
        if kind in _GIVEN:
            yield from self._end_call(item, text, done=done)
        else:
            yield from self._end_part(item, text)
        yield self._event("response.output_item.done", item=item)
        self.items.append(item)
        self._open, self._pieces, self._logprobs = None, [], []

    def _end_call(self, item: dict[str, Any], text: str, *, done: bool) -> Iterator[Event]:
        given, word = _GIVEN[item["type"]]
        if item["type"] == "custom_tool_call" and (left := self._input.finish()):
            yield self._event(f"response.{word}.delta", delta=left)
            text += left
        item[given] = text
        if done:
            named = {"name": item["name"]} if item["type"] == "function_call" else {}
            yield self._event(f"response.{word}.done", **named, **{given: text})

    def _end_part(self, item: dict[str, Any], text: str) -> Iterator[Event]:
        kind = item["type"]
        more: dict[str, Any] = {}
        if kind == "message":
            self._logprobs += self._new_logprobs
            self._new_logprobs = []
            more = {"logprobs": self._logprobs}
        elif self._carry_reasoning:
            item["encrypted_content"] = carry(text)
        part = _part(kind, text, self._logprobs)
        item["content"] = [part]
        yield self._event(f"response.{_TEXTS[kind]}.done", content_index=0, text=text, **more)
        yield self._event("response.content_part.done", content_index=0, part=part)

    def _text(self, kind: str, text: str) -> Iterator[Event]:
        if self._open is None or self._open["type"] != kind:
            role = {"role": "assistant"} if kind == "message" else {"summary": []}
            yield from self._start(kind, content=[], **role)
            yield self._event("response.content_part.added", content_index=0, part=_part(kind))
        self._pieces.append(text)
        more: dict[str, Any] = {}
        if kind == "message":
            more = {"logprobs": self._new_logprobs}
            self._logprobs += self._new_logprobs
            self._new_logprobs = []
        yield self._event(f"response.{_TEXTS[kind]}.delta", content_index=0, delta=text, **more)

    def _call(self, call: dict[str, Any]) -> Iterator[Event]:
        """Yield the events of a call's next piece; its first one has its id."""
        said = call["function"]
        if "id" in call:
            kind = "custom_tool_call" if said["name"] in self._custom else "function_call"
            named = self._namespaced.get(said["name"], {"name": said["name"]})
            yield from self._start(kind, call_id=call["id"], **named, **{_GIVEN[kind][0]: ""})
            self._input = InputText()
        assert self._open is not None, "a call's first piece has its id"
        kind, delta = self._open["type"], said["arguments"]
        if kind == "custom_tool_call":
            delta = self._input.feed(delta)
        if delta:
            self._pieces.append(delta)
            yield self._event(f"response.{_GIVEN[kind][1]}.delta", delta=delta)

    def _start(self, kind: str, **fields: Any) -> Iterator[Event]:
        yield from self.end()
        name = f"{_PREFIXES[kind]}_{uuid.uuid4().hex}"
        self._open = {"id": name, "type": kind, "status": "in_progress", **fields}
        added, index = dict(self._open), len(self.items)
        yield {"type": "response.output_item.added", "output_index": index, "item": added}

    def _event(self, kind: str, **fields: Any) -> Event:
        assert self._open is not None, "an event is about an item"
        named = {} if "item" in fields else {"item_id": self._open["id"]}
        return {"type": kind, "output_index": len(self.items), **named, **fields}

    def _is_whole(self, item: dict[str, Any]) -> bool:
        """Say whether an item is a call that can be handed to a tool."""
        whole = reversed(self._reply.tool_calls)
        return any(call["id"] == item.get("call_id") for call in whole)


def _part(kind: str, text: str = "", logprobs: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    part: dict[str, Any] = {"type": _TEXTS[kind], "text": text}
    return part if kind == "reasoning" else {**part, "annotations": [], "logprobs": list(logprobs)}


def response_usage(tally: Tally) -> dict[str, Any]:
    """Return the `usage` object; nothing is counted as written to the cache, as that is free."""
    return {
        "input_tokens": tally.prompt_tokens,
        "input_tokens_details": {"cached_tokens": tally.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": tally.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": tally.reasoning_tokens or 0},
        "total_tokens": tally.prompt_tokens + tally.completion_tokens,
    }
