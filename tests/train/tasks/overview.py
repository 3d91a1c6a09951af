"""Questions about a long text as a whole, which no single place of it answers."""

import math
import re
from collections import Counter
from dataclasses import dataclass
from random import Random

from tests.train import lexicon
from tests.train.dialogue import Check, Exchange, Turn
from tests.train.tasks.filler import OPENINGS, READ, TOPICS, sentences
from tests.train.tasks.thread import ask

_ABOUT = (
    "What is the text about?", "What is the topic of the text?", "What is this mostly about?",
    "Which topic does the text have?",
)  # fmt: skip
_SEEN = (
    "We saw the {}.", "There was the {} again.", "Then the {} came.", "The {} was there.",
    "Someone spoke of the {}.", "He showed us the {}.",
)  # fmt: skip
_MOST = (
    "Which {} occurs most often?", "Which {} comes most often in the text?",
    "What is the most common {} in the text?",
)  # fmt: skip
_OFTEN = (
    "How often does the word {} occur in the text?", "How many times does {} occur in the text?",
    "Count the word {} in the text.",
)  # fmt: skip
_MARKS = ("Indeed", "However", "Finally", "Suddenly", "Perhaps", "Luckily")
_LISTS = {"animal": lexicon.ANIMALS, "thing": lexicon.THINGS, "colour": lexicon.COLOURS}
# Many of the words whose number is asked for would be more than an answer at once can count.
_MOST_OFTEN = 6
# The more lines, the more often the words come that are compared.
_LINES_A_WORD = 12
_WORD = re.compile("[a-z]+")


@dataclass(slots=True)
class Overview:
    """The thread: gives a text, then asks all there is to ask of it.

    longest   tokens of the longest text; first: of the first one, 0 for any
    """

    rng: Random
    longest: int
    first: int = 0
    questions: tuple[Exchange, ...] = ()

    def step(self, at: int) -> Exchange:
        """Return a text, or a question about the last one."""
        del at
        if self.questions:
            question, *rest = self.questions
            self.questions = tuple(rest)
            return question
        return self._give()

    def _give(self) -> Exchange:
        rng = self.rng
        low = math.log(min(80, self.longest))
        tokens = self.first or int(math.exp(rng.uniform(low, math.log(self.longest))))
        self.first = 0
        topic = rng.choice(TOPICS)
        text: list[str] = []
        for _ in range(1 + tokens // 45):
            text += sentences(rng, rng.randint(2, 4), topic if rng.random() < 0.6 else None)
        kind = rng.choice(list(_LISTS))
        most = self._scatter(text, kind)
        mark, often = rng.choice(_MARKS), rng.randint(0, _MOST_OFTEN)
        for place in sorted(rng.sample(range(len(text)), min(often, len(text))), reverse=True):
            text[place] = f"{mark}, {text[place][0].lower()}{text[place][1:]}"
        often = min(often, len(text))
        questions = [
            _asked(rng.choice(_ABOUT), f"The text is about {_named(topic)}.", _named(topic)),
            _asked(rng.choice(_MOST).format(kind), most, most),
            _counted(rng.choice(_OFTEN).format(mark), often),
        ]
        rng.shuffle(questions)
        message = f"{rng.choice(OPENINGS)} {' '.join(text)}"
        if rng.random() < 0.5:
            self.questions = tuple(questions)
            return ask(message, READ, think="This is a text without a question.")
        (question, answer), *rest = questions
        self.questions = tuple(rest)
        return Turn("user", f"{message}\n{question.content}"), answer

    def _scatter(self, text: list[str], kind: str) -> str:
        """Put words of a kind into `text`, one of them clearly the most often; return that one."""
        rng = self.rng
        first, *others = rng.sample(_LISTS[kind], 4)
        for word in others:
            self._insert(text, kind, word, 1 + len(text) // _LINES_A_WORD)
        there = Counter(_WORD.findall(" ".join(text)))
        rivals = max(there[word] for word in _LISTS[kind] if word != first)
        self._insert(text, kind, first, 2 * rivals + 1 - there[first])
        return first

    def _insert(self, text: list[str], kind: str, word: str, times: int) -> None:
        for _ in range(times):
            line = f"It was {word}." if kind == "colour" else self.rng.choice(_SEEN).format(word)
            text.insert(self.rng.randint(0, len(text)), line)


def _named(topic: str) -> str:
    return f"the {topic}" if topic in ("weather", "market", "kitchen", "garden", "house") else topic


def _asked(question: str, answer: str, value: str) -> Exchange:
    check = Check("overview", "value", value)
    return ask(question, answer, think="The question is about the whole text.", check=check)


def _counted(question: str, often: int) -> Exchange:
    check = Check("overview_count", "number", str(often))
    return ask(question, str(often), think="I count it in the whole text.", check=check)
