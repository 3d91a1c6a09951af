"""Facts that are stated and asked for later, in the same conversation.

They are about named people, the user himself and his family, things and events. Later statements
win, follow-ups refer to the last question, some questions need two facts, some have no answer.
"""

from dataclasses import dataclass, field
from random import Random

from tests.train import lexicon
from tests.train.dialogue import Check, Exchange, Turn
from tests.train.tasks.fact import MADE_UP_SHARE, Fact, new_name, new_subject, pronouns, say
from tests.train.tasks.filler import sentences
from tests.train.tasks.relations import RELATIONS, Relation, Subject, subject
from tests.train.tasks.thread import ask, place_to_ask

UNKNOWN = "I do not know."
NOTED = "I will remember that."
CHANGED = "Thank you, I have changed that."
_CORRECTIONS = ("Correction: ", "No, wait: ", "I was wrong: ", "News: ", "Sorry, ", "Update: ")
_OPENINGS = (
    "", "", "", "", "Please remember: ", "Let me tell you something. ", "By the way: ", "Note: ",
    "Remember this: ", "Did you know? ",
)  # fmt: skip
# Before a statement that begins with whom it is about.
_WRAPS = (
    "I think that ", "I heard that ", "You should know that ", "It is true that ",
    "As I told you, ", "Everybody knows that ",
)  # fmt: skip
_WRAP_SHARE = 0.1
_REQUESTS = ("", "", "", "", "", "Tell me: ", "One question: ", "Please tell me: ", "So, ")
_GENDERS = {"sister": lexicon.WOMEN, "aunt": lexicon.WOMEN, "brother": lexicon.MEN}
_MOST_SUBJECTS = 60
# Facts that an answer lists: of more, a choice would be arbitrary.
_MOST_ABOUT = 3


@dataclass(slots=True)
class Facts:
    """The thread: states facts, corrects a few, and asks.

    state_share  how often an exchange states something
    fillers      most sentences of prose around a statement
    """

    rng: Random
    state_share: float = 0.3
    fillers: int = 2
    facts: list[Fact] = field(default_factory=list)
    subjects: dict[str, Subject] = field(default_factory=dict)
    last: Subject | None = None

    def step(self, at: int) -> Exchange:
        """Return a statement or a question, or both in one message."""
        rng = self.rng
        if not self.facts or rng.random() < self.state_share:
            return self._state(at)
        form = rng.random()
        if self.last is not None and form < 0.2:
            return self._ask(self._other_of(self.last, at), follows=True)
        if form < 0.55:
            return self._ask(self._pick(at))
        if form < 0.68:
            return self._yes_no(self._pick(at))
        if form < 0.76:
            return self._reverse(self._pick(at))
        if form < 0.84:
            return self._double(self._pick(at), at)
        if form < 0.90:
            return self._unknown()
        if form < 0.94:
            return self._two_hops(at)
        return self._about(self._pick(at))

    def _pick(self, at: int) -> Fact:
        return self.facts[place_to_ask(self.rng, [fact.at for fact in self.facts], at)]

    def _other_of(self, subject: Subject, at: int) -> Fact:
        found = [fact for fact in self.facts if fact.subject.key == subject.key]
        return self.rng.choice(found) if found else self._pick(at)

    # Statements

    def _state(self, at: int) -> Exchange:
        rng = self.rng
        if self.facts and rng.random() < 0.15:
            return self._correct(at)
        said: list[str] = []
        for _ in range(rng.choice((1, 1, 2, 3)) if self.facts else rng.choice((1, 2, 3, 4, 5))):
            who = self._subject()
            said.append(self._sentence(who, who.state, at))
            if said[-1] and who.kind != "self" and rng.random() < 0.25:
                said.append(self._sentence(who, pronouns(who), at))
        said = [text for text in said if text]
        if not said:
            return self._ask(self._pick(at))
        before = sentences(rng, rng.randint(0, self.fillers)) if rng.random() < 0.3 else []
        after = sentences(rng, rng.randint(0, self.fillers)) if rng.random() < 0.3 else []
        text = rng.choice(_OPENINGS) + " ".join([*before, *said, *after])
        if rng.random() < 0.3:
            question, answer = self._ask(rng.choice(self.facts[-3:]))
            return Turn("user", f"{text} {question.content}"), answer
        return ask(text, NOTED, think="The user tells me something.")

    def _sentence(self, who: Subject, words: dict[str, str], at: int) -> str:
        """Say one or two new things of `who`, named by `words`; "" if everything is said."""
        rng = self.rng
        known = {fact.relation.noun for fact in self.facts if fact.subject.key == who.key}
        free = [new for new in RELATIONS[who.kind] if new.noun not in known]
        if not free:
            return ""
        relation = rng.choice(free)
        value = self._value(relation, who)
        others = [new for new in free if new.predicates and new.noun != relation.noun]
        if others and relation.predicates and rng.random() < 0.35:
            other = rng.choice(others)
            second = self._value(other, who)
            text = (
                f"{words['S']} {say(rng.choice(relation.predicates), words, value)} and "
                f"{say(rng.choice(other.predicates), words, second)}."
            )
            self._keep(Fact(who, relation, value, text, at))
            self._keep(Fact(who, other, second, text, at))
        else:
            text = self._statement(relation, words, value)
            self._keep(Fact(who, relation, value, text, at))
        return text

    def _statement(self, relation: Relation, words: dict[str, str], value: str) -> str:
        rng = self.rng
        templates = [f"{{S}} {predicate}." for predicate in relation.predicates]
        template = rng.choice((*templates, *relation.states))
        if template.startswith(("{S}", "{P}")) and rng.random() < _WRAP_SHARE:
            template = rng.choice(_WRAPS) + template.replace("{S}", "{s}").replace("{P}", "{p}")
        return say(template, words, value)

    def _correct(self, at: int) -> Exchange:
        rng = self.rng
        fact = rng.choice(self.facts)
        value = self._value(fact.relation, fact.subject)
        text = self._statement(fact.relation, fact.subject.state, value)
        self._keep(Fact(fact.subject, fact.relation, value, text, at))
        return ask(rng.choice(_CORRECTIONS) + text, CHANGED, think="The user corrects something.")

    def _keep(self, new: Fact) -> None:
        self.facts = [
            fact
            for fact in self.facts
            if fact.relation.noun != new.relation.noun or fact.subject.key != new.subject.key
        ]
        self.facts.append(new)

    def _subject(self) -> Subject:
        rng = self.rng
        if self.subjects and (rng.random() < 0.4 or len(self.subjects) >= _MOST_SUBJECTS):
            return rng.choice(list(self.subjects.values()))
        return self._met(new_subject(rng))

    def _met(self, who: Subject) -> Subject:
        return self.subjects.setdefault(who.key, who)

    def _value(self, relation: Relation, who: Subject) -> str:
        rng = self.rng
        match relation.values:
            case ("number",):
                return str(rng.randint(1, 10 ** rng.randint(1, 4) - 1))
            case ("price",):
                return str(rng.randint(2, 99))
            case ("age",):
                return str(rng.randint(5, 95))
            case ("hour",):
                return rng.choice(lexicon.NUMBER_WORDS[1:])
            case ("name",):
                return self._name(relation, who)
            case words:
                if words is lexicon.CITIES and rng.random() < MADE_UP_SHARE:
                    return lexicon.made_up_name(rng)
                return rng.choice(words)

    def _name(self, relation: Relation, who: Subject) -> str:
        rng = self.rng
        if who.kind == "pet":
            return rng.choice(lexicon.PET_NAMES)
        gender = _GENDERS.get(relation.noun)
        if gender is not None and rng.random() > MADE_UP_SHARE:
            return rng.choice(gender)
        known = [key for key, one in self.subjects.items() if one.kind == "person"]
        known = [key for key in known if key != who.key and " " not in key]
        return rng.choice(known) if known and rng.random() < 0.5 else new_name(rng)

    # Questions

    def _ask(self, fact: Fact, *, follows: bool = False) -> Exchange:
        rng, relation = self.rng, fact.relation
        self.last = fact.subject
        question = say(
            rng.choice(relation.follows if follows else relation.asks), fact.subject.ask, ""
        )
        if not follows:
            question = _requested(rng, question)
        return ask(question, fact.answer(), think=fact.thought, check=self._check(fact))

    def _check(self, fact: Fact) -> Check:
        answer = fact.answer()
        rivals = {
            other.value
            for other in self.facts
            if other.relation.noun == fact.relation.noun and other.value not in answer
        }
        return Check(
            "facts", "value", fact.value, rivals=tuple(sorted(rivals)), source=fact.text
        )  # fmt: skip

    def _yes_no(self, fact: Fact) -> Exchange:
        rng, relation = self.rng, fact.relation
        self.last = fact.subject
        right = rng.random() < 0.5
        value = fact.value
        while not right and value == fact.value:
            value = self._value(relation, fact.subject)
        question = say(relation.yes_no, fact.subject.ask, value)
        word = "yes" if right else "no"
        answer = f"{word.capitalize()}, {fact.answer(fact.subject.inside)}"
        check = Check("facts", "yes_no", word, source=fact.text)
        return ask(question, answer, think=fact.thought, check=check)

    def _reverse(self, fact: Fact) -> Exchange:
        same = [f for f in self.facts if f.relation.noun == fact.relation.noun]
        same = [f for f in same if f.value == fact.value]
        if not fact.relation.reverse or len(same) > 1:
            return self._ask(fact)
        self.last = fact.subject
        question = say(fact.relation.reverse, fact.subject.ask, fact.value)
        if fact.subject.kind == "self":
            check = Check("facts", "mentions", "you|your", source=fact.text)
        else:
            check = Check("facts", "value", fact.subject.answer["s"], source=fact.text)
        think = f"The question is about {fact.value}. {fact.answer()}"
        return ask(_requested(self.rng, question), fact.answer(), think=think, check=check)

    def _double(self, fact: Fact, at: int) -> Exchange:
        other = self._other_of(fact.subject, at)
        if other.relation.noun == fact.relation.noun or other.subject.key != fact.subject.key:
            return self._ask(fact)
        self.last = fact.subject
        first = say(self.rng.choice(fact.relation.asks), fact.subject.ask, "")
        second = say(self.rng.choice(other.relation.follows), fact.subject.ask, "")
        answer = f"{fact.answer()} {other.answer()}"
        check = Check("facts", "value", f"{fact.value}|{other.value}", source=fact.text)
        return ask(
            f"{first} {second}", answer, think=f"These are two questions. {answer}", check=check
        )

    def _unknown(self) -> Exchange:
        rng = self.rng
        who = rng.choice(list(self.subjects.values())) if rng.random() < 0.6 else new_subject(rng)
        known = {fact.relation.noun for fact in self.facts if fact.subject.key == who.key}
        free = [relation for relation in RELATIONS[who.kind] if relation.noun not in known]
        if not free or self._has_name(who):
            return self._ask(rng.choice(self.facts))
        relation = rng.choice(free)
        self.last = None
        question = _requested(rng, say(rng.choice(relation.asks), who.ask, ""))
        think = f"The question is about {who.inside['p']} {relation.noun}. I was not told that."
        check = Check("facts", "mentions", "do not know|don't know|was not told")
        return ask(question, UNKNOWN, think=think, check=check)

    def _has_name(self, who: Subject) -> bool:
        """Say whether the name of the user's own `who` is known, and with it perhaps more."""
        nouns = {fact.relation.noun for fact in self.facts if fact.subject.kind == "self"}
        return who.key.startswith("my ") and who.key[3:] in nouns

    def _two_hops(self, at: int) -> Exchange:
        """Ask about someone's boss, or about whoever has a certain job."""
        links = [
            (link, end)
            for link in self.facts
            if link.subject.kind != "pet" and link.relation.values == ("name",)
            # "My boss" may also be spoken of without a name, and is then whom a question means.
            if link.subject.kind != "self" or f"my {link.relation.noun}" not in self.subjects
            for end in self.facts
            if end.subject.key == link.value and end.relation.values != ("name",)
        ]
        if not links:
            return self._ask(self._pick(at))
        link, end = self.rng.choice(links)
        name = f"{link.subject.ask['p']} {link.relation.noun}"
        if link.relation.noun == "owner":
            name = f"the owner of {link.subject.ask['s']}"
        asked = subject(name, kind="person", he=end.subject.ask["he"], his=end.subject.ask["his"])
        self.last = end.subject
        question = say(self.rng.choice(end.relation.asks), asked.ask, "")
        think = f"{link.answer()} {end.answer()}"
        check = Check("two_hops", "value", end.value, source=end.text)
        return ask(question, end.answer(), think=think, check=check)

    def _about(self, fact: Fact) -> Exchange:
        """Ask for all there is to say of someone, where that is little enough for an answer."""
        rng, who = self.rng, fact.subject
        found = [other for other in self.facts if other.subject.key == who.key]
        if len(found) > _MOST_ABOUT:
            return self._ask(fact)
        self.last = who
        text = rng.choice(("What do you know about {}?", "Tell me about {}.", "What about {}?"))
        question = text.format("me" if who.kind == "self" else who.ask["s"])
        answer = " ".join(other.answer() for other in found)
        check = Check("facts", "value", "|".join(other.value for other in found), source=fact.text)
        return ask(question, answer, think=f"The question is about {who.inside['s']}.", check=check)


def _requested(rng: Random, question: str) -> str:
    request = rng.choice(_REQUESTS)
    if not request or question.startswith("I "):
        return question
    return (
        request + question[0].lower() + question[1:]
        if request.endswith(", ")
        else request + question
    )
