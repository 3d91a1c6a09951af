"""An answer as Anthropic's clients see it: content blocks, told as the events of a stream.

A whole reply is made of the same events, put together as a client does it.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from runtime.errors import Aborted
from runtime.server.messages_thinking import carry
from runtime.server.runs import Tally
from runtime.tokenizer.choice import Finish

Event = dict[str, Any]

_DELTAS = {"text": "text_delta", "thinking": "thinking_delta"}


class BlockEvents:
    """Turns the deltas of a chat into events of content blocks.

    signature      of thinking that is told
    omit_thinking  leave thinking out; its signature carries it
    """

    def __init__(self, signature: str, *, omit_thinking: bool) -> None:
        self._signature = signature
        self._omit_thinking = omit_thinking
        self._index = -1
        self._open: str | None = None
        self._omitted: list[str] = []

    def add(self, deltas: Iterable[dict[str, Any]]) -> Iterator[Event]:
        """Yield the events of more deltas."""
        for delta in deltas:
            if "reasoning_content" in delta:
                yield from self._text("thinking", delta["reasoning_content"])
            if "content" in delta:
                yield from self._text("text", delta["content"])
            for call in delta.get("tool_calls", []):
                yield from self._call(call)

    def end(self) -> Iterator[Event]:
        """Yield the end of the block that is open, if one is."""
        if self._open is None:
            return
        if self._open == "thinking":
            signature = self._signature
            if self._omit_thinking:
                signature = carry("".join(self._omitted))
                self._omitted = []
            yield self._delta({"type": "signature_delta", "signature": signature})
        self._open = None
        yield {"type": "content_block_stop", "index": self._index}

    def _text(self, kind: str, text: str) -> Iterator[Event]:
        if self._open != kind:
            yield from self.end()
            more = {"signature": ""} if kind == "thinking" else {}
            yield self._start({"type": kind, kind: "", **more})
        if kind == "thinking" and self._omit_thinking:
            self._omitted.append(text)
        else:
            yield self._delta({"type": _DELTAS[kind], kind: text})

    def _call(self, call: dict[str, Any]) -> Iterator[Event]:
        """Yield the events of a call's next piece; its first one has its id."""
        said = call["function"]
        if "id" in call:
            yield from self.end()
            yield self._start(
                {"type": "tool_use", "id": call["id"], "name": said["name"], "input": {}}
            )
        if said["arguments"]:
            yield self._delta({"type": "input_json_delta", "partial_json": said["arguments"]})

    def _start(self, block: dict[str, Any]) -> Event:
        self._index += 1
        self._open = block["type"]
        return {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def assembled(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return the content that the events of an answer make."""
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], blocks[-1]
            if delta["type"] == "input_json_delta":
                before = block["input"]
                written = bytes(before) if isinstance(before, msgspec.Raw) else b""
                block["input"] = msgspec.Raw(written + delta["partial_json"].encode())
            else:
                name = delta["type"].removesuffix("_delta")
                block[name] += delta[name]
    return blocks


def message_usage(tally: Tally) -> dict[str, Any]:
    """Return the `usage` object; what was not read from the cache counts as `input_tokens`.

    Nothing is counted as written to the cache: that is done for all of a prompt, unasked, and
    costs nothing.
    """
    usage: dict[str, Any] = {
        "input_tokens": tally.prompt_tokens - tally.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": tally.cached_tokens,
        "output_tokens": tally.completion_tokens,
    }
    if tally.reasoning_tokens is not None:
        usage["output_tokens_details"] = {"thinking_tokens": tally.reasoning_tokens}
    return usage


def stop_fields(finish: Finish | None, *, calls: bool, within_limit: bool) -> dict[str, Any]:
    """Return `stop_reason` and `stop_sequence`.

    calls         whether the answer has calls to make
    within_limit  whether it has less tokens than were asked for
    Raises Aborted where the request was aborted.
    """
    reason, sequence = "end_turn", None
    if finish is not None and finish.type == "abort":
        raise Aborted(finish.message or "the request was aborted")
    if finish is not None and finish.type == "length":
        reason = "model_context_window_exceeded" if within_limit else "max_tokens"
    elif finish is not None and isinstance(finish.matched, str):
        reason, sequence = "stop_sequence", finish.matched
    elif calls:
        reason = "tool_use"
    return {"stop_reason": reason, "stop_sequence": sequence}
