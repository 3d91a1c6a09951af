"""A fact and whom it is about."""

from dataclasses import dataclass
from random import Random

from tests.train import lexicon
from tests.train.tasks.relations import Relation, Subject, subject, the_user

MADE_UP_SHARE = 0.08
_WOMEN = ("sister", "mother", "daughter", "aunt", "grandmother", "wife", "niece", "girlfriend")
_MEN = ("brother", "father", "son", "uncle", "grandfather", "husband", "nephew", "boyfriend")
_EITHER = (
    "cousin", "neighbour", "neighbor", "friend", "best friend", "boss", "teacher", "doctor",
    "partner", "colleague", "old friend", "new neighbour", "child", "guest",
)  # fmt: skip
_SHE, _HE = ("she", "her"), ("he", "his")


@dataclass(slots=True)
class Fact:
    """What was said last of one relation of one subject.

    text  the sentence it was said in
    at    about how many tokens were said before it
    """

    subject: Subject
    relation: Relation
    value: str
    text: str
    at: int

    def answer(self, words: dict[str, str] | None = None) -> str:
        """Return the answer to a question for it; `words` other than at a sentence's start."""
        return say(self.relation.answer, words or self.subject.answer, self.value)

    @property
    def thought(self) -> str:
        """What is thought before it is answered."""
        words = self.subject.inside
        return f"The question is about {words['p']} {self.relation.noun}. {self.answer()}"


def new_name(rng: Random) -> str:
    """Return a name of the list or, rarely, a made-up one."""
    if rng.random() < MADE_UP_SHARE:
        return lexicon.made_up_name(rng)
    return rng.choice(lexicon.NAMES)


def new_subject(rng: Random) -> Subject:
    """Return anyone or anything that facts can be about."""
    form = rng.random()
    if form < 0.5:
        name = new_name(rng)
        woman = name in lexicon.WOMEN or (name not in lexicon.MEN and rng.random() < 0.5)
        he, his = ("she", "her") if woman else ("he", "his")
        return subject(name, kind="person", he=he, his=his)
    if form < 0.62:
        return the_user()
    if form < 0.74:
        return _someone(rng)
    if form < 0.79:
        return subject(f"my {rng.choice(lexicon.ANIMALS)}", kind="pet", he="it", his="its")
    if form < 0.94:
        whose = "my" if rng.random() < 0.2 else "the"
        return subject(f"{whose} {rng.choice(lexicon.THINGS)}", kind="thing", he="it", his="its")
    return subject(f"the {rng.choice(lexicon.EVENTS)}", kind="event", he="it", his="its")


def _someone(rng: Random) -> Subject:
    """Return someone without a name: one of the user's people or, rarely, "the baker"."""
    if rng.random() < 0.2:
        name, (he, his) = f"the {rng.choice(lexicon.JOBS)}", rng.choice((_SHE, _HE))
        return subject(name, kind="person", he=he, his=his)
    name = rng.choice(rng.choice((_WOMEN, _MEN, _EITHER)))
    words = _SHE if name in _WOMEN else _HE if name in _MEN else rng.choice((_SHE, _HE))
    return subject(f"my {name}", kind="person", he=words[0], his=words[1])


def pronouns(who: Subject) -> dict[str, str]:
    """Return the words of a statement that goes on about `who`."""
    words = who.state
    return {**words, "S": words["He"], "s": words["he"], "P": words["His"], "p": words["his"]}


def say(template: str, words: dict[str, str], value: str) -> str:
    """Return a template of `relations` in words, with its value."""
    return template.format(**words, v=value, a=lexicon.article(value) if value else "")
