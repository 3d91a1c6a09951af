"""Conversations as values: what is said, and how a reply is judged.

The same value is trained on and evaluated with: in training every turn is rendered, in an
evaluation the turns before a checked one are sent to the server and its reply is judged.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
# How `Check.passes` judges; the rule of each is said there.
Rule = Literal["value", "number", "yes_no", "exact", "json", "call", "mentions"]

MAX_EXTRA_WORDS = 25
_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"-?\d+")


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call; `arguments` in the order of the tool's parameters."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered: the text without its reasoning, and the calls."""

    content: str
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """What a right reply is.

    task      family of tasks, the row of an evaluation's table
    rule      how a reply is judged, see `passes`
    expected  the answer: a value, a text, or an object as JSON for the rule "json"
    rivals    for "value": values that a right reply does not mention
    calls     for "call": what must be called; () where calling is wrong
    source    the text that the answer is found in, "" if there is none: its last occurrence
              before the question is where the distance is counted from
    """

    task: str
    rule: Rule
    expected: str
    rivals: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    source: str = ""

    def passes(self, reply: Reply) -> bool:
        """Say whether `reply` is right.

        value     says every "|"-separated part of `expected` as whole words, in any case and
                  among at most `MAX_EXTRA_WORDS` others, and no rival
        number    its last number is `expected`
        yes_no    its first word is `expected`, in any case
        exact     is `expected`; white space at the ends, one pair of quotes around it and one
                  final period more or less do not count, case does
        json      is one JSON value equal to `expected` and nothing else; order of keys and white
                  space do not count
        call      calls exactly `calls`, in this order, whatever it says besides; where there are
                  none, it also says every part of `expected`
        mentions  says one of the "|"-separated parts of `expected`, in any case
        Except for "call", a reply with a tool call is wrong.
        """
        if self.rule == "call":
            said = self.calls or all(_has(reply.content, part) for part in self._parts())
            return reply.calls == self.calls and bool(said)
        return not reply.calls and self._right(reply.content)

    def _parts(self) -> list[str]:
        return self.expected.split("|")

    def _right(self, content: str) -> bool:
        match self.rule:
            case "value":
                words = len(_WORD.findall(content)) - len(_WORD.findall(self.expected))
                said = all(_has(content, part) for part in self._parts())
                return (
                    said
                    and words <= MAX_EXTRA_WORDS
                    and not any(_has(content, rival) for rival in self.rivals)
                )
            case "number":
                return _NUMBER.findall(content)[-1:] == [self.expected]
            case "yes_no":
                return [word.lower() for word in _WORD.findall(content)[:1]] == [self.expected]
            case "json":
                return _same_json(content, self.expected)
            case "mentions":
                return any(_has(content, part) for part in self._parts())
            case _:
                return _bare(content) == _bare(self.expected)


@dataclass(frozen=True, slots=True)
class Turn:
    """One message.

    reasoning   of an assistant's turn: what it thinks first, where the dialogue is a thinking one
    tool_calls  what an assistant calls; the turns after it are the results, in this order
    check       how a reply in its place is judged, if it can be
    """

    role: Role
    content: str
    reasoning: str = ""
    tool_calls: tuple[Call, ...] = ()
    check: Check | None = None


# A user's turn and all that answers it, up to the last word of the assistant.
Exchange = tuple[Turn, ...]


@dataclass(slots=True)
class Dialogue:
    """A conversation: a system's turn if any, then exchanges.

    tools            functions as OpenAI's API has them (`name`, `description`, `parameters`)
    response_format  as in the API, or None
    thinking         whether the assistant thinks before it answers
    effort           of a thinking one; "high" is what V4 takes if nothing is said
    spare            exchanges that need nothing before them, to fill what a row has left
    """

    turns: list[Turn]
    tools: list[dict[str, Any]] = field(default_factory=list)
    response_format: dict[str, Any] | None = None
    thinking: bool = False
    effort: Literal["low", "high"] = "high"
    spare: list[Exchange] = field(default_factory=list)

    def request(self, until: int) -> dict[str, Any]:
        """Return the body of `/v1/chat/completions` that asks for turn number `until`.

        The reasoning of the turns before it is sent where there are tools: only then is it kept.
        """
        body: dict[str, Any] = {"messages": list(self._messages(until))}
        if self.tools:
            body["tools"] = [{"type": "function", "function": tool} for tool in self.tools]
        if self.response_format is not None:
            body["response_format"] = self.response_format
        body["thinking"] = {"type": "enabled" if self.thinking else "disabled"}
        if self.thinking:
            body["reasoning_effort"] = self.effort
        return body

    def checked(self) -> list[int]:
        """Return the numbers of the turns that are judged."""
        return [number for number, turn in enumerate(self.turns) if turn.check is not None]

    def _messages(self, until: int) -> Iterator[dict[str, Any]]:
        waiting: list[str] = []
        for number, turn in enumerate(self.turns[:until]):
            message: dict[str, Any] = {"role": turn.role, "content": turn.content}
            if turn.role == "assistant" and self.thinking and self.tools:
                message["reasoning_content"] = turn.reasoning
            if turn.tool_calls:
                waiting = [f"call_{number}_{k}" for k in range(len(turn.tool_calls))]
                message["tool_calls"] = [
                    {"id": name, "type": "function", "function": _function(call)}
                    for name, call in zip(waiting, turn.tool_calls, strict=True)
                ]
            if turn.role == "tool":
                message["tool_call_id"] = waiting.pop(0)
            yield message


def _function(call: Call) -> dict[str, str]:
    return {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}


def _has(text: str, part: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(part)}(?!\w)", text, re.IGNORECASE) is not None


def _bare(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1].strip()
    return text.removesuffix(".")


def _same_json(text: str, expected: str) -> bool:
    try:
        return bool(_typed(json.loads(text)) == _typed(json.loads(expected)))
    except ValueError:
        return False


def _typed(value: Any) -> Any:
    """Return `value` in a form in which true is not 1."""
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_typed(item) for item in value]
    return (type(value).__name__, value)
