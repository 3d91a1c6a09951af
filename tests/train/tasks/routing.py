"""Sorting into kinds: which of several topics a text has, and what is a what."""

from dataclasses import dataclass
from random import Random

from tests.train import lexicon
from tests.train.dialogue import Check, Exchange
from tests.train.tasks.filler import TOPICS, sentences
from tests.train.tasks.thread import ask

_SORT = (
    'Is this about {topics}? "{text}"', "Topics: {topics}. Which one is this: {text}",
    "Choose one of {topics}: {text}", "Sort this text into one of {topics}: {text}",
    "{text} Is this about {topics}?", "Answer with one word, {topics}: {text}",
)  # fmt: skip
_ABOUT = ('Is this about the {topic}? "{text}"', "Is the following about the {topic}: {text}")
_KINDS = {
    "animal": lexicon.ANIMALS, "colour": lexicon.COLOURS, "city": lexicon.CITIES,
    "food": lexicon.FOODS, "drink": lexicon.DRINKS, "job": lexicon.JOBS, "day": lexicon.DAYS,
    "month": lexicon.MONTHS, "country": lexicon.COUNTRIES, "language": lexicon.LANGUAGES,
    "instrument": lexicon.INSTRUMENTS, "material": lexicon.MATERIALS,
}  # fmt: skip
_NAMED = ("city", "day", "month", "country", "language")


@dataclass(slots=True)
class Routing:
    """The thread."""

    rng: Random

    def step(self, at: int) -> Exchange:
        """Return something to sort."""
        del at
        form = self.rng.random()
        if form < 0.45:
            return self._sort()
        if form < 0.6:
            return self._about()
        if form < 0.75:
            return self._is_a()
        if form < 0.9:
            return self._which_of()
        return self._what_is()

    def _sort(self) -> Exchange:
        rng = self.rng
        topics = rng.sample(TOPICS, rng.randint(2, 6))
        topic = rng.choice(topics)
        listed = ", ".join(topics[:-1]) + f" or {topics[-1]}"
        text = " ".join(sentences(rng, rng.randint(1, 4), topic))
        question = rng.choice(_SORT).format(topics=listed, text=text)
        think = f"The text is about the {topic}."
        return ask(question, topic, think=think, check=Check("routing", "exact", topic))

    def _about(self) -> Exchange:
        rng = self.rng
        topic = rng.choice(TOPICS)
        asked = topic if rng.random() < 0.5 else rng.choice(TOPICS)
        text = " ".join(sentences(rng, rng.randint(1, 4), topic))
        question = rng.choice(_ABOUT).format(topic=asked, text=text)
        return _decided(question, asked == topic, f"The text is about the {topic}.")

    def _is_a(self) -> Exchange:
        rng = self.rng
        kind = rng.choice(list(_KINDS))
        asked = kind if rng.random() < 0.5 else rng.choice(list(_KINDS))
        word = rng.choice(_KINDS[kind])
        # Some words are of two kinds: a fish swims, and is eaten.
        right = word in _KINDS[asked]
        question = f"Is {word} {lexicon.article(asked)} {asked}?"
        return _decided(question, right, f"{lexicon.capital(word)}: {kind}.")

    def _which_of(self) -> Exchange:
        rng = self.rng
        kind = rng.choice(list(_KINDS))
        words = [rng.choice(_KINDS[other]) for other in rng.sample(list(_KINDS), 4)]
        words = [word for word in dict.fromkeys(words) if word not in _KINDS[kind]][:3]
        word = rng.choice(_KINDS[kind])
        words.insert(rng.randint(0, len(words)), word)
        question = f"Which of these is {lexicon.article(kind)} {kind}: {', '.join(words)}?"
        check = Check("routing", "exact", word)
        return ask(question, word, think=f"I look for the {kind}.", check=check)

    def _what_is(self) -> Exchange:
        rng = self.rng
        kind = rng.choice(list(_KINDS))
        word = rng.choice([w for w in _KINDS[kind] if w not in ("fish", "drum")])
        named = "" if kind in (*_NAMED, "colour", "food", "drink", "material") else "a "
        named = f"{lexicon.article(word)} " if named else ""
        answer = lexicon.capital(f"{named}{word} is {lexicon.article(kind)} {kind}.")
        check = Check("routing", "value", kind)
        question = rng.choice(("What is {}?", "Tell me what {} is.")).format(f"{named}{word}")
        return ask(question, answer, think="The user wants to know a word.", check=check)


def _decided(question: str, right: bool, think: str) -> Exchange:
    word = "Yes" if right else "No"
    check = Check("routing", "yes_no", word.lower())
    return ask(question, f"{word}.", think=think, check=check)
