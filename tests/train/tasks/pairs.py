"""Lists of keys and values in several layouts, asked one key at a time.

The answer is the value and nothing else; for a question the other way round it is the key.
"""

import json
from dataclasses import dataclass, field
from random import Random

from tests.train import lexicon
from tests.train.dialogue import Check, Exchange, Turn
from tests.train.tasks.thread import ask, place_to_ask

STORED = "I have the list."
_OPENINGS = (
    "Here is a list:", "Remember these values:", "Here are some values:", "Please keep this table:",
    "This is the list of codes:", "Data:", "Here is a table:", "The settings are:",
)  # fmt: skip
_ASKS = (
    "What is the value of {}?", "{}?", "Look up {}.", "Which value belongs to {}?", "What is {}?",
    "Give me the value of {}.", "What does {} have?", "And {}?", "Tell me the value for {}.",
    "What is the code of {}?",
)  # fmt: skip
_TOKENS_A_PAIR = 6
_REVERSE = (
    "Which key has the value {}?", "Which key belongs to {}?", "What has the value {}?",
    "Whose value is {}?",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pair:
    """A line of a list; `text` is how it stands there."""

    key: str
    value: str
    text: str
    at: int


@dataclass(slots=True)
class Pairs:
    """The thread: gives a list, asks many of its values, then gives another one.

    most           pairs of the longest list
    list_share     how often a further list is given
    reverse_share  how often a key is asked for
    """

    rng: Random
    most: int = 20
    list_share: float = 0.08
    reverse_share: float = 0.3
    pairs: list[Pair] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)

    def step(self, at: int) -> Exchange:
        """Return a list or a question."""
        rng = self.rng
        if not self.pairs or rng.random() < self.list_share:
            return self._give(at)
        pair = self.pairs[place_to_ask(rng, [pair.at for pair in self.pairs], at)]
        alike = [other for other in self.pairs if other.value == pair.value]
        if rng.random() < self.reverse_share and len(alike) == 1:
            return self._ask(pair, rng.choice(_REVERSE).format(pair.value), pair.key)
        return self._ask(pair, rng.choice(_ASKS).format(pair.key), pair.value)

    def _ask(self, pair: Pair, question: str, answer: str) -> Exchange:
        think = f"The list says: {pair.key} {pair.value}."
        check = Check("pairs", "exact", answer, source=pair.text)
        return ask(question, answer, think=think, check=check)

    def _give(self, at: int) -> Exchange:
        rng = self.rng
        keys = [key for key in self._new_keys(rng.randint(3, self.most)) if key not in self.keys]
        self.keys.update(keys)
        values = _values(rng, len(keys))
        lines, text = _laid_out(rng, keys, values)
        for number, (key, value, line) in enumerate(zip(keys, values, lines, strict=True)):
            place = at + _TOKENS_A_PAIR * number
            last = self.pairs[-1].at if self.pairs else 0
            self.pairs.append(Pair(key, value, line, max(place, last)))
        message = f"{rng.choice(_OPENINGS)}\n{text}"
        if rng.random() < 0.4:
            pair = rng.choice(self.pairs[-len(keys) :])
            question, answer = self._ask(pair, rng.choice(_ASKS).format(pair.key), pair.value)
            return Turn("user", f"{message}\n{question.content}"), answer
        return ask(message, STORED, think="The user gives me a list.")

    def _new_keys(self, count: int) -> list[str]:
        rng = self.rng
        form = rng.random()
        if form < 0.5:
            return rng.sample(lexicon.PLAIN, count)
        if form < 0.7:
            return rng.sample(lexicon.NAMES, min(count, len(lexicon.NAMES)))
        make = lexicon.code if form < 0.88 else lexicon.made_up
        return list(dict.fromkeys(make(rng) for _ in range(count)))


def _values(rng: Random, count: int) -> list[str]:
    form = rng.random()
    if form < 0.4:
        digits = rng.randint(1, 4)
        return [str(rng.randrange(10**digits)) for _ in range(count)]
    if form < 0.75:
        words = rng.choice((lexicon.PLAIN, lexicon.PLAIN, lexicon.CITIES, lexicon.NAMES))
        return [rng.choice(words) for _ in range(count)]
    make = lexicon.code if form < 0.9 else lexicon.made_up
    return [make(rng) for _ in range(count)]


def _laid_out(rng: Random, keys: list[str], values: list[str]) -> tuple[list[str], str]:
    """Return how each pair is written, and the list they make."""
    form = rng.randrange(7)
    if form == 0:
        lines = [f"{json.dumps(k)}: {_json(v)}" for k, v in zip(keys, values, strict=True)]
        joint = ", " if rng.random() < 0.5 else ",\n"
        return lines, "{" + joint.join(lines) + "}"
    if form == 1:
        lines = [f"| {k} | {v} |" for k, v in zip(keys, values, strict=True)]
        return lines, "\n".join(["| key | value |", "| --- | --- |", *lines])
    if form == 2:
        lines = [f"{k}: {v}" for k, v in zip(keys, values, strict=True)]
        return lines, ", ".join(lines) + "."
    template = ("{}: {}", "{} = {}", "- {}: {}", "The value of {} is {}.")[form - 3]
    lines = [template.format(k, v) for k, v in zip(keys, values, strict=True)]
    return lines, "\n".join(lines)


def _json(value: str) -> str:
    return value if value.isdigit() and str(int(value)) == value else json.dumps(value)
