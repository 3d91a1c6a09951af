"""Long lists of votes, and who got more of them: questions that only the whole list answers.

Every vote weighs the same, and no part of a list tells of the whole: some candidates get theirs
early, others late, and votes for one often come several in a row, so that reading a few of them is
worth even less. A network that samples guesses; one that averages over everything knows.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from tests.train import lexicon
from tests.train.dialogue import Check, Exchange, Turn
from tests.train.tasks.thread import ask

TAKEN = "I have the list."
_KINDS = (
    ("Who", lexicon.NAMES), ("Who", lexicon.NAMES), ("Who", lexicon.NAMES),
    ("Which animal", lexicon.ANIMALS), ("Which colour", lexicon.COLOURS),
    ("Which city", lexicon.CITIES), ("Which food", lexicon.FOODS),
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
_MORE_SHARE = 0.3
_VOTES_A_CANDIDATE = 8
# Votes in a row for one candidate: so many at most, and fewer in short lists.
_MOST_IN_A_ROW, _ROWS_A_LIST = 16, 20
# How far the votes of one candidate are from evenly spread.
_SLANT = math.log(2.5)
# A question is asked where the answer is beyond doubt: by so many votes and by such a factor.
_LEAST_LEAD, _LEAST_FACTOR = 2, 1.12


@dataclass(slots=True)
class Votes:
    """The thread: gives a list, asks all there is to ask of it, then goes on with it or anew.

    longest     tokens of the longest list; first: of the first one, 0 for any
    candidates  how many there are, 0 for any number
    factors     least and greatest factor between the two candidates of a pair
    rows_share  how often votes for one candidate come several in a row
    more        whether there are further lists when all was asked; else it is asked again
    """

    rng: Random
    longest: int
    first: int = 0
    candidates: int = 0
    factors: tuple[float, float] = (1.2, 4.0)
    rows_share: float = 0.6
    more: bool = True
    pairs: list[list[str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    known: set[str] = field(default_factory=set)
    questions: list[Exchange] = field(default_factory=list)
    who: str = "Who"

    def step(self, at: int) -> Exchange:
        """Return a list, with or without a question, or a question about the last one."""
        del at
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
        if self.known == self.counts.keys() and not goes_on and rng.random() < 0.5:
            # The first list of all needs no name to be asked for.
            self.questions = self._questions(named=False)
        else:
            self.questions = self._questions()
        if alone or not self.questions or rng.random() < 0.4:
            return ask(f"{message}.", TAKEN, think="The user gives me votes.")
        question, answer = self.questions.pop()
        return Turn("user", f"{message}.\n{question.content}"), answer

    def _begin(self, number: int) -> bool:
        """Choose candidates that were in no vote before; return whether there were enough."""
        rng = self.rng
        most = max(2, min(10, number // _VOTES_A_CANDIDATE))
        count = self.candidates or min(most, rng.choice((2, 2, 3, 4, 6, 8, 10, 10)))
        fresh = [(who, [w for w in words if w not in self.known]) for who, words in _KINDS]
        fresh = [(who, words) for who, words in fresh if len(words) >= count]
        if not fresh:
            return False
        self.who, words = rng.choice(fresh)
        chosen = rng.sample(words, count)
        self.known.update(chosen)
        self.pairs = [chosen[k : k + 2] for k in range(0, count, 2)]
        self.counts = Counter()
        return True

    def _cast(self, number: int) -> list[str]:
        """Return about `number` votes in their order."""
        rng = self.rng
        wanted: dict[str, float] = {}
        for pair in self.pairs:
            whole = rng.uniform(0.7, 1.4) * len(pair)
            factor = math.exp(rng.uniform(*map(math.log, self.factors)))
            one, *other = rng.sample(pair, len(pair))
            wanted[one] = whole * factor / (1 + factor)
            wanted |= dict.fromkeys(other, whole / (1 + factor))
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

    def _questions(self, *, named: bool = True) -> list[Exchange]:
        """Return what can be asked, in an order of chance."""
        rng = self.rng
        asked: list[Exchange] = []
        for pair in self.pairs:
            winner = self._winner(pair)
            if winner is not None and (len(self.counts) > 2 or named):
                form = rng.choice(_EITHER)
                text = form.format(*rng.sample(pair, 2), who=self.who)
                asked.append(_asked(text, winner, pair))
        winner = self._winner(list(self.counts))
        if winner is not None and (len(self.counts) > 2 or not named):
            text = rng.choice(_MOST).format(self.who)
            if named:
                listed = lexicon.joined(rng.sample(list(self.counts), len(self.counts)))
                text = f"{text[:-1]}: {listed.replace(' and ', ' or ')}?"
            asked.append(_asked(text, winner, list(self.counts)))
        rng.shuffle(asked)
        return asked

    def _winner(self, names: list[str]) -> str | None:
        """Return who of `names` clearly has the most votes; None if nobody, or there is one."""
        if len(names) < 2:
            return None
        first, second = sorted(names, key=lambda name: -self.counts[name])[:2]
        lead = self.counts[first] - self.counts[second]
        clear = self.counts[first] >= _LEAST_FACTOR * self.counts[second]
        return first if clear and lead >= _LEAST_LEAD else None


def _asked(question: str, winner: str, names: list[str]) -> Exchange:
    rivals = tuple(sorted(name for name in names if name != winner))
    check = Check("votes", "value", winner, rivals=rivals)
    think = f"The question is about all the votes. It is {winner}."
    return ask(question, f"It is {winner}.", think=think, check=check)
