"""How many there are: items of a list, times a word occurs, up to about twelve."""

from collections import Counter
from dataclasses import dataclass
from random import Random

from tests.train import lexicon
from tests.train.dialogue import Check, Exchange
from tests.train.tasks.thread import ask

MOST = 12
_ITEMS = (
    "How many items are in this list: {}?", "Count the words: {}", "How many words are these: {}?",
    "Count: {}", "How many are there: {}?", "{}. How many words is that?",
)  # fmt: skip
_TIMES = (
    "How often does the word {word} occur: {words}", "Count the word {word}: {words}",
    "How many times does {word} occur in: {words}", "{words}. How often is {word} there?",
)  # fmt: skip
_KINDS = (
    ("animals", lexicon.ANIMALS), ("colours", lexicon.COLOURS), ("cities", lexicon.CITIES),
    ("names", lexicon.NAMES), ("jobs", lexicon.JOBS), ("foods", lexicon.FOODS),
)  # fmt: skip


@dataclass(slots=True)
class Counting:
    """The thread."""

    rng: Random

    def step(self, at: int) -> Exchange:
        """Return a question for a number."""
        del at
        rng = self.rng
        form = rng.random()
        if form < 0.45:
            words = [rng.choice(lexicon.PLAIN) for _ in range(rng.randint(1, MOST))]
            return _counted(rng.choice(_ITEMS).format(_listed(rng, words)), words, "items")
        if form < 0.8:
            few = rng.sample(lexicon.PLAIN, rng.randint(2, 4))
            words = [rng.choice(few) for _ in range(rng.randint(3, 14))]
            word = rng.choice(few)
            question = rng.choice(_TIMES).format(word=word, words=_listed(rng, words))
            return _counted(question, [word] * Counter(words)[word], f"times {word}")
        (kind, right), (_, wrong) = rng.sample(_KINDS, 2)
        words = [rng.choice(right) for _ in range(rng.randint(1, 6))]
        mixed = words + [rng.choice(wrong) for _ in range(rng.randint(1, 6))]
        rng.shuffle(mixed)
        ordered = [word for word in mixed if word in right]
        question = f"How many {kind} are in this list: {_listed(rng, mixed)}?"
        return _counted(question, ordered, kind)


def _listed(rng: Random, words: list[str]) -> str:
    return rng.choice((", ", ", ", " ", "; ")).join(words)


def _counted(question: str, found: list[str], what: str) -> Exchange:
    """Return the question and its number; what is found is counted aloud by who thinks."""
    aloud = " ".join(f"{word} {number}" for number, word in enumerate(found, start=1))
    think = f"I count the {what}: {aloud or 'none'}."
    check = Check("counting", "number", str(len(found)))
    return ask(question, f"{len(found)}", think=think, check=check)
