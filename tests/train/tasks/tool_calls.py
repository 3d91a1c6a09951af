"""Calls of tools that the request defines, with arguments from the user's words."""

import json
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.train import lexicon
from tests.train.dialogue import Call, Check, Exchange, Turn
from tests.train.tasks.thread import ask
from tests.train.tasks.tools import TOOLS, Slot, Tool

NO_TOOL = "I have no tool for that."
_REQUESTS = ("", "", "", "", "Please help me. ", "Hello! ", "I have a question. ", "Next: ")
_CALLED = ("Use {}: {}", "Call {}. {}")


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool as one request defines it: the names it has there."""

    tool: Tool
    name: str
    description: str
    parameters: tuple[str, ...]

    def schema(self) -> dict[str, Any]:
        """Return the function as OpenAI's API has it."""
        slots = zip(self.parameters, self.tool.slots, strict=True)
        properties = {name: {"type": slot.type} for name, slot in slots}
        parameters = {
            "type": "object",
            "properties": properties,
            "required": list(self.parameters),
        }
        return {"name": self.name, "description": self.description, "parameters": parameters}


@dataclass(slots=True)
class ToolCalls:
    """The thread; its `tools` go into the request."""

    rng: Random
    offers: list[Offer] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = self.rng
        for tool in rng.sample(TOOLS, rng.choice((1, 2, 2, 3, 3, 4))):
            name = rng.choice(tool.names)
            parameters = tuple(rng.choice(slot.names) for slot in tool.slots)
            self.offers.append(Offer(tool, name, rng.choice(tool.describes), parameters))

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The functions that the request defines."""
        return [offer.schema() for offer in self.offers]

    def step(self, at: int) -> Exchange:
        """Return a request with its calls, their results and the answer."""
        del at
        rng = self.rng
        if rng.random() < 0.07:
            return self._refused()
        offer = rng.choice(self.offers)
        values = [_values(rng, offer.tool)]
        question = _asked(rng, offer, values[0])
        if rng.random() < 0.12:
            other = rng.choice(self.offers)
            values.append(_values(rng, other.tool))
            second = _asked(rng, other, values[1])
            return self._answered(f"{question} {second}", [offer, other], values)
        return self._answered(question, [offer], values)

    def _answered(
        self, question: str, offers: list[Offer], values: list[list[str | int]]
    ) -> Exchange:
        rng = self.rng
        calls = tuple(
            Call(offer.name, dict(zip(offer.parameters, said, strict=True)))
            for offer, said in zip(offers, values, strict=True)
        )
        results = [_result(rng, offer.tool) for offer in offers]
        answer = " ".join(
            offer.tool.answer.format(*said, r=result)
            for offer, said, result in zip(offers, values, results, strict=True)
        )
        wants = " and ".join(
            offer.tool.wants.format(*said) for offer, said in zip(offers, values, strict=True)
        )
        names = " and ".join(offer.name for offer in offers)
        called = Check("tool_calls", "call", "", calls=calls, source=question)
        shown = [str(r) for o, r in zip(offers, results, strict=True) if "{r}" in o.tool.answer]
        right = Check("tool_answers", "value", "|".join(shown)) if shown else None
        return (
            Turn("user", rng.choice(_REQUESTS) + question),
            Turn(
                "assistant",
                "",
                reasoning=f"The user wants {wants}. I call {names}.",
                tool_calls=calls,
                check=called,
            ),
            *(
                Turn("tool", json.dumps({offer.tool.key: result}))
                for offer, result in zip(offers, results, strict=True)
            ),
            Turn("assistant", answer, reasoning="The tool has answered.", check=right),
        )

    def _refused(self) -> Exchange:
        """Ask for something that no offered tool does."""
        rng = self.rng
        offered = [offer.tool for offer in self.offers]
        tool = rng.choice([tool for tool in TOOLS if tool not in offered])
        question = rng.choice(tool.asks).format(*_values(rng, tool))
        check = Check("tool_calls", "call", "no tool", source=question)
        return ask(question, NO_TOOL, think="None of the tools does that.", check=check)


def _asked(rng: Random, offer: Offer, values: list[str | int]) -> str:
    question = rng.choice(offer.tool.asks).format(*values)
    if rng.random() < 0.05:
        return rng.choice(_CALLED).format(offer.name, question)
    return question


def _values(rng: Random, tool: Tool) -> list[str | int]:
    return [_value(rng, slot) for slot in tool.slots]


def _value(rng: Random, slot: Slot) -> str | int:
    if not slot.values:
        return rng.randint(slot.low, slot.high)
    if slot.values is lexicon.CITIES and rng.random() < 0.1:
        return lexicon.made_up_name(rng)
    return rng.choice(slot.values)


def _result(rng: Random, tool: Tool) -> str | int:
    if tool.results == ("made_up",):
        return lexicon.made_up(rng)
    return rng.choice(tool.results) if tool.results else rng.randint(1, 99)
