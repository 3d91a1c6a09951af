"""Small sums, differences and products, as formulas, in words and as little stories."""

from dataclasses import dataclass
from random import Random

from tests.train import lexicon
from tests.train.dialogue import Check, Exchange
from tests.train.tasks.thread import ask

LARGEST = 99
_ASKS = (
    "What is {}?", "{}", "{} =", "{} = ?", "How much is {}?", "Calculate {}.", "Tell me {}.",
    "Please compute {}.",
)  # fmt: skip
_WORDS = {"+": ("+", "+", "plus", "and"), "-": ("-", "-", "minus"), "*": ("*", "*", "times")}
_GOODS = (
    "apples",
    "books",
    "coins",
    "eggs",
    "flowers",
    "cups",
    "plates",
    "pears",
    "tickets",
    "nuts",
)
_MORE = (
    "{name} has {a} {goods} and buys {b} more.", "{name} had {a} {goods} and found {b} more.",
    "There are {a} {goods}. {name} brings {b} more.",
)  # fmt: skip
_LESS = (
    "{name} has {a} {goods} and gives away {b}.", "{name} had {a} {goods} and lost {b}.",
    "There are {a} {goods}. {name} takes {b}.",
)  # fmt: skip
_HOW_MANY = ("How many {} are there now?", "How many {} are left?", "How many {} is that?")


@dataclass(slots=True)
class Sums:
    """The thread."""

    rng: Random

    def step(self, at: int) -> Exchange:
        """Return something to calculate."""
        del at
        form = self.rng.random()
        if form < 0.5:
            return self._formula()
        if form < 0.65:
            return self._three()
        if form < 0.8:
            return self._compare()
        return self._story()

    def _formula(self) -> Exchange:
        sign = self.rng.choice("++--*")
        a, b = self._operands(sign)
        return self._asked(_result(a, sign, b), f"{a} {sign} {b}", _spoken(self.rng, a, sign, b))

    def _operands(self, sign: str) -> tuple[int, int]:
        """Return two numbers whose result is not negative."""
        rng = self.rng
        if sign == "*":
            return rng.randint(0, 10), rng.randint(0, 10)
        top = rng.choice((9, 20, LARGEST, LARGEST))
        a, b = rng.randint(0, top), rng.randint(0, top)
        return (max(a, b), min(a, b)) if sign == "-" else (a, b)

    def _three(self) -> Exchange:
        a, b, c = (self.rng.randint(0, 20) for _ in range(3))
        formula = f"{a} + {b} + {c}"
        return self._asked(a + b + c, formula, formula, think=f"{a} + {b} = {a + b}.")

    def _asked(self, result: int, formula: str, spoken: str, think: str = "") -> Exchange:
        check = Check("sums", "number", str(result))
        think = think or f"The user wants {formula}."
        question = self.rng.choice(_ASKS).format(spoken)
        return ask(question, f"{formula} = {result}", think=think, check=check)

    def _compare(self) -> Exchange:
        rng = self.rng
        a, b = rng.sample(range(LARGEST + 1), 2)
        word = rng.choice(("larger", "bigger", "smaller"))
        right = min(a, b) if word == "smaller" else max(a, b)
        check = Check("sums", "number", str(right))
        question = f"Which number is {word}, {a} or {b}?"
        return ask(question, str(right), think=f"The user compares {a} and {b}.", check=check)

    def _story(self) -> Exchange:
        rng = self.rng
        sign = rng.choice("+-")
        a, b = self._operands(sign)
        name, goods = rng.choice(lexicon.NAMES), rng.choice(_GOODS)
        told = rng.choice(_MORE if sign == "+" else _LESS).format(name=name, a=a, b=b, goods=goods)
        asked = rng.choice(_HOW_MANY).format(goods)
        result = _result(a, sign, b)
        check = Check("sums", "number", str(result))
        answer = f"{a} {sign} {b} = {result}"
        return ask(f"{told} {asked}", answer, think=f"The user asks about {goods}.", check=check)


def _result(a: int, sign: str, b: int) -> int:
    return {"+": a + b, "-": a - b, "*": a * b}[sign]


def _spoken(rng: Random, a: int, sign: str, b: int) -> str:
    word = rng.choice(_WORDS[sign])
    if word == sign and rng.random() < 0.3:
        return f"{a}{sign}{b}"
    return f"{a} {word} {b}"
