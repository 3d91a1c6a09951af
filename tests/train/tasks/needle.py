"""One to a few sentences that matter in long prose that does not."""

import math
from dataclasses import dataclass, field
from random import Random

from tests.train import lexicon
from tests.train.dialogue import Check, Exchange, Turn
from tests.train.tasks.filler import OPENINGS, READ, TOPICS, sentences
from tests.train.tasks.thread import ask, place_to_ask, tokens_of

_KINDS = ("password", "secret word", "magic word", "secret name", "secret number", "code", "sign")
_STATES = (
    "The {kind} of the {place} is {value}.", "The {kind} for the {place} is {value}.",
    "Remember that the {kind} of the {place} is {value}.",
    "Nobody knows that the {kind} of the {place} is {value}.",
    "Do not forget: the {kind} of the {place} is {value}.",
)  # fmt: skip
_ASKS = (
    "What is the {kind} of the {place}?", "What is the {kind} for the {place}?",
    "Which {kind} does the {place} have?", "Tell me the {kind} of the {place}.",
    "What was the {kind} of the {place}?", "The {kind} of the {place}?",
)  # fmt: skip
_FAR = 20


@dataclass(frozen=True, slots=True)
class Needle:
    """A sentence that is asked for; `at`: about how many tokens were said before it."""

    kind: str
    place: str
    value: str
    text: str
    at: int

    @property
    def answer(self) -> str:
        """The answer to a question for it."""
        return f"The {self.kind} of the {self.place} is {self.value}."


@dataclass(slots=True)
class Needles:
    """The thread: gives texts with needles in them, and asks for any of them later.

    longest     tokens of the longest text
    text_share  how often a further text is given
    first       tokens of the first text, all of whose needles are at its beginning; 0: as others
    """

    rng: Random
    longest: int
    text_share: float = 0.25
    first: int = 0
    needles: list[Needle] = field(default_factory=list)

    def step(self, at: int) -> Exchange:
        """Return a text, with or without a question, or a question."""
        rng = self.rng
        if not self.needles or rng.random() < self.text_share:
            return self._give(at)
        places = [needle.at for needle in self.needles]
        return self._ask(self.needles[place_to_ask(rng, places, at)])

    def _ask(self, needle: Needle) -> Exchange:
        question = self.rng.choice(_ASKS).format(kind=needle.kind, place=needle.place)
        values = {other.value for other in self.needles}
        rivals = {value for value in values if value not in needle.answer}
        check = Check(
            "needle", "value", needle.value, rivals=tuple(sorted(rivals)), source=needle.text
        )
        think = f"The question is about the {needle.place}. {needle.answer}"
        return ask(question, needle.answer, think=think, check=check)

    def _give(self, at: int) -> Exchange:
        rng = self.rng
        shortest = min(60, self.longest)
        tokens = self.first or int(
            math.exp(rng.uniform(math.log(shortest), math.log(self.longest)))
        )
        text = [
            line for _ in range(1 + tokens // 65) for line in sentences(rng, 5, rng.choice(TOPICS))
        ]
        count = rng.choice((1, 2, 3)) + tokens // 700
        fresh = [self._new() for _ in range(count)]
        fresh = [new for k, new in enumerate(fresh) if self._is_new(new, fresh[:k])]
        places = [0 if self.first else self._place(len(text)) for _ in fresh]
        self.first = 0
        for new, place in sorted(zip(fresh, places, strict=True), key=lambda pair: -pair[1]):
            text.insert(place, new.text)
        for new in sorted(fresh, key=lambda new: text.index(new.text)):
            before = tokens_of(" ".join(text[: text.index(new.text)]))
            last = self.needles[-1].at if self.needles else 0
            place = max(at + before, last)
            self.needles.append(Needle(new.kind, new.place, new.value, new.text, place))
        joint = "\n" if rng.random() < 0.1 else " "
        message = f"{rng.choice(OPENINGS)} {joint.join(text)}"
        if rng.random() < 0.6:
            question, answer = self._ask(rng.choice(self.needles[-len(fresh) :]))
            return Turn("user", f"{message}\n{question.content}"), answer
        return ask(message, READ, think="This is a text without a question.")

    def _place(self, lines: int) -> int:
        """Return where a needle goes: its distance from the end is log-uniform."""
        return lines - round(math.exp(self.rng.uniform(0, math.log(lines))))

    def _is_new(self, new: Needle, others: list[Needle]) -> bool:
        known = [*self.needles, *others]
        return not any(old.kind == new.kind and old.place == new.place for old in known)

    def _new(self) -> Needle:
        rng = self.rng
        kind = rng.choice(_KINDS)
        place = rng.choice(lexicon.ROOMS if rng.random() < 0.7 else lexicon.THINGS)
        value = _number(rng) if kind in ("secret number", "code") else _words(rng)
        text = rng.choice(_STATES).format(kind=kind, place=place, value=value)
        return Needle(kind, place, value, text, 0)


def _number(rng: Random) -> str:
    return str(rng.randrange(10, 10 ** rng.randint(2, 5)))


def _words(rng: Random) -> str:
    form = rng.random()
    if form < 0.6:
        colour = rng.choice(lexicon.COLOURS + lexicon.ADJECTIVES)
        return f"{colour} {rng.choice(lexicon.ANIMALS + lexicon.NOUNS)}"
    return rng.choice(lexicon.PLAIN) if form < 0.85 else lexicon.made_up(rng)
