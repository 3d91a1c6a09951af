"""Long lists of votes, and who got most of them: questions that only the whole list answers.

Every vote weighs the same, and no part of a list tells of the whole: some candidates get theirs
early, others late, and votes for one often come several in a row. A network that samples guesses;
one that averages over everything knows. What is asked right below a list is half answered by the
last votes, which are still in sight, and then that is all that is learnt: so there is mostly prose
in between. Which candidate is first is asked before two of them are compared: it needs no more
than the most frequent word, and comparing is learnt from there.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from random import Random

from tests.train import lexicon
from tests.train.dialogue import Check, Exchange, Turn
from tests.train.tasks.filler import read
from tests.train.tasks.thread import ask

TAKEN = "I have the list."
_KINDS = (
    ("Who", lexicon.NAMES), ("Who", lexicon.NAMES), ("Who", lexicon.NAMES),
    ("Which animal", lexicon.ANIMALS), ("Which colour", lexicon.COLOURS),
    ("Which city", lexicon.CITIES), ("Which food", lexicon.FOODS),
    ("Which drink", lexicon.DRINKS), ("Which country", lexicon.COUNTRIES),
    ("Which job", lexicon.JOBS), ("Which month", lexicon.MONTHS),
)  # fmt: skip
_OPENINGS = (
    "Here are the votes:", "These are all the votes:", "We had a vote. The votes are:",
    "Please count these votes:", "Votes:", "The list of votes:",
)  # fmt: skip
_MORE = ("More votes:", "Here are more votes:", "There are more votes:", "And these votes:")
_MOST = ("{} got the most votes?", "{} has the most votes?", "{} is first?")
_EITHER = (
    "Did {} or {} get more votes?", "{who} got more votes, {} or {}?",
    "{who} has more votes: {} or {}?", "Are there more votes for {} or for {}?",
)  # fmt: skip
# Text between two votes, and the tokens that a vote takes with it.
_JOINTS = ((" ", 1), (", ", 2), ("; ", 2))
_MORE_SHARE = 0.15
# Who may be named in a vote.
CANDIDATES = frozenset(word for _, words in _KINDS for word in words)
_VOTES_A_CANDIDATE = 8
# Tokens of prose between a list and what is asked of it: more than are in sight at once.
_APART = (140, 200)
# Votes in a row for one candidate: so many at most, and fewer in short lists.
_MOST_IN_A_ROW, _ROWS_A_LIST = 16, 20
_MOST_COMPARED = 2
_NAMED_SHARE = 0.3
# How far the votes of one candidate are from evenly spread.
_SLANT = math.log(2.5)
# A question is asked where the answer is beyond doubt: by so many votes and by such a factor.
_LEAST_LEAD, _LEAST_FACTOR = 2, 1.2


@dataclass(slots=True)
class Votes:
    """The thread: gives a list, asks all there is to ask of it, then goes on with it or anew.

    longest      tokens of the longest list; first: of the first one, 0 for any
    factors      least and greatest factor between the first and any other
    rows_share   how often votes for one candidate come several in a row
    apart_share  how often there is prose between a list and the questions
    more         whether there are further lists when all was asked; else it is asked again
    """

    rng: Random
    longest: int
    first: int = 0
    factors: tuple[float, float] = (1.3, 4.0)
    rows_share: float = 0.6
    apart_share: float = 0.0
    more: bool = True
    counts: Counter[str] = field(default_factory=Counter)
    known: set[str] = field(default_factory=set)
    questions: list[Exchange] = field(default_factory=list)
    who: str = ""
    unnamed: bool = True
    apart: bool = False

    def step(self, at: int) -> Exchange:
        """Return a list, prose, or a question about the last list."""
        del at
        if self.apart:
            self.apart = False
            return read(self.rng, self.rng.randint(*_APART))
        if not self.questions and not self.more and self.counts:
            self.questions = self._questions()
        return self.questions.pop() if self.questions else self._give()

    def _give(self) -> Exchange:
        rng = self.rng
        alone = self.first > 0
        joint, size = rng.choice(_JOINTS)
        low = min(40, self.longest)
        tokens = self.first or math.exp(rng.uniform(math.log(low), math.log(self.longest)))
        self.first = 0
        number = max(12, int(tokens / size))
        goes_on = bool(self.counts) and rng.random() < _MORE_SHARE
        goes_on = goes_on or not self._begin(number)
        given = self._cast(number)
        self.counts += Counter(given)
        message = f"{rng.choice(_MORE if goes_on else _OPENINGS)} {joint.join(given)}"
        self.questions = self._questions()
        self.apart = not alone and bool(self.questions) and rng.random() < self.apart_share
        if alone or self.apart or not self.questions or rng.random() < 0.4:
            return ask(f"{message}.", TAKEN, think="The user gives me votes.")
        question, answer = self.questions.pop()
        return Turn("user", f"{message}.\n{question.content}"), answer

    def _begin(self, number: int) -> bool:
        """Choose candidates that were in no vote before; return whether there were enough."""
        rng = self.rng
        most = max(2, min(4, number // _VOTES_A_CANDIDATE))
        count = min(most, rng.choice((2, 2, 3, 4)))
        fresh = [(who, [w for w in words if w not in self.known]) for who, words in _KINDS]
        fresh = [(who, words) for who, words in fresh if len(words) >= count]
        if not fresh:
            return False
        self.who, words = rng.choice(fresh)
        chosen = rng.sample(words, count)
        # Of one vote among such candidates it is clear which one is meant, without a name.
        kind = next(words for who, words in _KINDS if who == self.who)
        self.unnamed = self.known.isdisjoint(kind)
        self.known.update(chosen)
        self.counts = Counter(dict.fromkeys(chosen, 0))
        return True

    def _cast(self, number: int) -> list[str]:
        """Return about `number` votes in their order."""
        rng = self.rng
        least, greatest = map(math.log, self.factors)
        first, *others = rng.sample(list(self.counts), len(self.counts))
        wanted = {name: math.exp(-rng.uniform(least, greatest)) for name in others}
        wanted[first] = 1.0
        scale = number / sum(wanted.values())
        rows = 1
        if rng.random() < self.rows_share:
            rows = max(1, min(_MOST_IN_A_ROW, number // _ROWS_A_LIST))
        placed: list[tuple[float, list[str]]] = []
        for name, share in wanted.items():
            slant = math.exp(rng.uniform(-_SLANT, _SLANT))
            left = max(1, round(share * scale))
            while left > 0:
                votes = min(left, rng.randint(1, rows))
                left -= votes
                placed.append((rng.random() ** slant, [name] * votes))
        return [name for _, names in sorted(placed) for name in names]

    def _questions(self) -> list[Exchange]:
        """Return what can be asked; the last is asked first."""
        rng = self.rng
        names = list(self.counts)
        compared: list[Exchange] = []
        for pair in combinations(names, 2):
            winner = self._winner(pair)
            if winner is not None:
                text = rng.choice(_EITHER).format(*rng.sample(pair, 2), who=self.who)
                compared.append(_asked(text, winner, pair))
        asked = rng.sample(compared, min(len(compared), _MOST_COMPARED))
        winner = self._winner(names)
        if winner is not None and (self.unnamed or len(names) > 2):
            text = rng.choice(_MOST).format(self.who)
            if not self.unnamed or rng.random() < _NAMED_SHARE:
                listed = lexicon.joined(rng.sample(names, len(names)))
                text = f"{text[:-1]}: {listed.replace(' and ', ' or ')}?"
            asked.append(_asked(text, winner, names))
        return asked

    def _winner(self, names: Sequence[str]) -> str | None:
        """Return who of `names` clearly has the most votes; None if nobody, or there is one."""
        if len(names) < 2:
            return None
        first, second = sorted(names, key=lambda name: -self.counts[name])[:2]
        lead = self.counts[first] - self.counts[second]
        clear = self.counts[first] >= _LEAST_FACTOR * self.counts[second]
        return first if clear and lead >= _LEAST_LEAD else None


def _asked(question: str, winner: str, names: Sequence[str]) -> Exchange:
    rivals = tuple(sorted(name for name in names if name != winner))
    check = Check("votes", "value", winner, rivals=rivals)
    think = f"The question is about all the votes. It is {winner}."
    return ask(question, f"It is {winner}.", think=think, check=check)
