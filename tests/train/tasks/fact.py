"""A fact and whom it is about."""

from dataclasses import dataclass
from random import Random

from tests.train import lexicon
from tests.train.tasks.relations import Relation, Subject, subject, the_user

MADE_UP_SHARE = 0.08
_OWN = (
    *(("sister", "she", "her"), ("mother", "she", "her"), ("daughter", "she", "her")),
    *(("brother", "he", "his"), ("father", "he", "his"), ("son", "he", "his")),
)


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
    if form < 0.68:
        name, he, his = rng.choice(_OWN)
        return subject(f"my {name}", kind="person", he=he, his=his)
    if form < 0.74:
        return subject(f"my {rng.choice(lexicon.ANIMALS)}", kind="pet", he="it", his="its")
    if form < 0.92:
        whose = "my" if rng.random() < 0.2 else "the"
        return subject(f"{whose} {rng.choice(lexicon.THINGS)}", kind="thing", he="it", his="its")
    return subject(f"the {rng.choice(lexicon.EVENTS)}", kind="event", he="it", his="its")


def pronouns(who: Subject) -> dict[str, str]:
    """Return the words of a statement that goes on about `who`."""
    words = who.state
    return {**words, "S": words["He"], "s": words["he"], "P": words["His"], "p": words["his"]}


def say(template: str, words: dict[str, str], value: str) -> str:
    """Return a template of `relations` in words, with its value."""
    return template.format(**words, v=value, a=lexicon.article(value) if value else "")
