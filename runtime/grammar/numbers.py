"""Numbers of JSON within bounds, as rules that read one digit after the other.

A number has 100 digits before its point at most, and as many behind it. Between bounds it has no
exponent, and no more digits than a float keeps apart: a value that a parser rounds stays in bounds.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from runtime.errors import GrammarError
from runtime.grammar.ebnf import EMPTY, Rules, characters, either, literal, sequence
from runtime.grammar.repetition import repeat

_DIGITS = ("[0-9]",)
_MOST_DIGITS = 100
# So many significant digits a float keeps apart, and so many behind the point are usual.
_EXACT_DIGITS = 15
_USUAL_DECIMALS = 6
_MOST_STEP = 100
# Multiples without a bound on a side end there: a validator may divide floats, which have no gaps
# up to the first. The other is for those that begin beyond it, and the end of all.
_MOST_MULTIPLE, _MOST_LARGE_MULTIPLE = 1 << 53, 10**19


@dataclass(frozen=True)
class Bound:
    """One end of a range. `inside` says whether the value itself is in the range."""

    value: Decimal
    inside: bool


@dataclass(frozen=True)
class Range:
    """Numbers from one bound to another; None: endless to that side."""

    low: Bound | None = None
    high: Bound | None = None

    def mirrored(self) -> "Range":
        """Return the range of the same numbers with the other sign."""
        low, high = (b and Bound(-b.value, b.inside) for b in (self.high, self.low))
        return Range(low, high)

    def from_zero(self, *, inside: bool) -> "Range":
        """Return the part of it that is not below 0, with 0 or without."""
        zero = Bound(Decimal(0), inside)
        keeps = self.low is not None and (self.low.value > 0 or (self.low.value == 0 and inside))
        return Range(self.low if keeps else zero, self.high)

    @property
    def empty(self) -> bool:
        """Whether no number is in it."""
        if self.low is None or self.high is None:
            return False
        if self.low.value == self.high.value:
            return not (self.low.inside and self.high.inside)
        return self.low.value > self.high.value


def decimal_of(value: float) -> Decimal:
    """Return a number of JSON as a decimal: a float as it is written, a large one as it is."""
    if not value:
        return Decimal(0)  # Zero has a sign in JSON.
    return (
        Decimal(value) if isinstance(value, int) or abs(value) >= 1 << 53 else Decimal(repr(value))
    )


def any_integer(rules: Rules) -> str:
    """Return the rule of an integer of any size."""
    more = repeat(rules, _DIGITS, 0, _MOST_DIGITS - 1)
    return rules.add("integer", f'("0" | "-"? [1-9] {more})')


def any_number(rules: Rules) -> str:
    """Return the rule of a number of any size that a float can have."""
    more = repeat(rules, _DIGITS, 0, _MOST_DIGITS - 1)
    decimals = f'("." {repeat(rules, _DIGITS, 1, _MOST_DIGITS)})?'
    exponent = "[eE] [+\\-]? ([0-9] [0-9]? | [12] [0-9] [0-9])"
    plain = f'("0" | [1-9] {more}) {decimals}'
    return rules.add("number", f'"-"? ({plain} | [1-9] {decimals} {exponent})')


def integer_in(rules: Rules, span: Range, step: int | None) -> str:
    """Return the expression of an integer in a range that is a multiple of `step`.

    Raises GrammarError where there is none, or where multiples cannot be counted.
    """
    low, high = span.low, span.high
    if low is not None:
        floor = _floor(low.value)
        low = Bound(Decimal(floor + (floor < low.value or not low.inside)), inside=True)
    if high is not None:
        floor = _floor(high.value)
        high = Bound(Decimal(floor - (floor == high.value and not high.inside)), inside=True)
    span = Range(low, high)
    if step is None:
        return _signed(rules, span, _plain_integer)
    if step > _MOST_STEP:
        raise GrammarError(f"the schema keyword 'multipleOf' cannot be enforced above {_MOST_STEP}")
    return _signed(rules, span, lambda rules, part: _multiples_between(rules, step, part))


def number_in(rules: Rules, span: Range) -> str:
    """Return the expression of a number in a range. Raises GrammarError where there is none."""
    if span == Range():
        return any_number(rules)
    return _signed(rules, span, lambda rules, part: _Walk(rules, part, decimals=True).all())


def _plain_integer(rules: Rules, span: Range) -> str | None:
    return _Walk(rules, span, decimals=False).all()


def _signed(rules: Rules, span: Range, write: Callable[[Rules, Range], str | None]) -> str:
    """Return the expression of both signs, each written by `write` for numbers that are not
    below 0. Raises GrammarError where there is no number.
    """
    choices: list[str] = []
    above, below = span.from_zero(inside=True), span.mirrored().from_zero(inside=False)
    for part, sign in ((above, EMPTY), (below, literal("-"))):
        written = None if part.empty else write(rules, part)
        if written is not None:
            choices.append(sequence((sign, written)))
    if not choices:
        raise GrammarError(
            "no number fits 'minimum', 'maximum' and their like, or none with few enough digits"
        )
    return rules.add("range", either(choices))


def _floor(value: Decimal) -> int:
    whole = int(value)
    return whole - (whole > value)


class _Walk:
    """Numbers of a range that begins at 0 or above, digit by digit.

    A state is how many digits were read, and whether they are those of the lower bound so far, and
    those of the upper one.
    """

    def __init__(self, rules: Rules, span: Range, *, decimals: bool) -> None:
        assert span.low is not None
        self._rules = rules
        self._low, self._high = span.low, span.high
        self._decimals = 0
        if decimals:
            places = [_places(bound.value) for bound in (span.low, span.high) if bound]
            self._decimals = max(_USUAL_DECIMALS, *places)
        # Zeros before the first digit that counts, where all numbers begin with them.
        self._zeros = 0
        if span.high is not None and 0 < span.high.value < 1:
            self._zeros = -span.high.value.adjusted()

    def all(self) -> str | None:
        """Return the expression of all of them, None if there are none."""
        shortest = _length(self._low.value)
        longest = (
            _MOST_DIGITS if self._high is None else min(_MOST_DIGITS, _length(self._high.value))
        )
        choices: list[str] = []
        for length in range(shortest, longest + 1):
            if self._high is None and length > shortest:
                choices.append(self._longer(length))
                break
            part = _Digits(self, length).write()
            if part is not None:
                choices.append(part)
        return either(choices) if choices else None

    def _longer(self, length: int) -> str:
        """Return the expression of numbers with so many digits before the point, or more."""
        digits = repeat(self._rules, _DIGITS, length - 1, _MOST_DIGITS - 1)
        return sequence(("[1-9]", digits, self.tail(self.places(length))))

    def places(self, length: int) -> int:
        """Return how many decimals a number with so many digits before its point may have."""
        return max(0, min(self._decimals, _EXACT_DIGITS - length + self._zeros))

    def tail(self, places: int) -> str:
        """Return the expression of any decimals, none among them."""
        if not places:
            return EMPTY
        return self._rules.add("decimals", f'("." {repeat(self._rules, _DIGITS, 1, places)})?')

    @property
    def rules(self) -> Rules:
        """Where rules are added."""
        return self._rules

    @property
    def low(self) -> Bound:
        """The lower bound."""
        return self._low

    @property
    def high(self) -> Bound | None:
        """The upper bound."""
        return self._high


class _Digits:
    """Numbers of a walk with so many digits before the point."""

    def __init__(self, walk: _Walk, length: int) -> None:
        self._walk = walk
        self._length = length
        self._places = walk.places(length)
        self._low, self._low_rest = self._digits(walk.low)
        self._high, self._high_rest = self._digits(walk.high)
        self._known: dict[tuple[int, bool, bool], str | None] = {}

    def _digits(self, bound: Bound | None) -> tuple[str, bool]:
        """Return a bound's digits, without its point, up to where numbers end, and whether other
        digits than 0 follow. No digits: all numbers of this length are on the right side.
        """
        if bound is None or _length(bound.value) != self._length:
            return "", False
        whole, _, decimals = f"{bound.value:f}".partition(".")
        kept = decimals[: self._places].ljust(self._places, "0")
        return whole + kept, bool(decimals[self._places :].strip("0"))

    def write(self) -> str | None:
        """Return the expression, None if there are none."""
        for at in range(self._length + self._places, -1, -1):
            for by_low in (False, True):
                for by_high in (False, True):
                    self._known[at, by_low, by_high] = self._from(at, by_low, by_high)
        return self._known[0, bool(self._low), bool(self._high)]

    def _from(self, at: int, by_low: bool, by_high: bool) -> str | None:
        """Return the expression of what may follow `at` digits, None if nothing may.

        by_low, by_high  whether the digits are those of the bound so far
        """
        if (by_low and not self._low) or (by_high and not self._high):
            return None
        if not by_low and not by_high:
            return self._free(at)
        choices: list[str] = []
        if at >= self._length and self._may_end(at, by_low, by_high):
            choices.append(EMPTY)
        if at < self._length + self._places:
            point = literal(".") if at == self._length else EMPTY
            for digits, following in self._steps(at, by_low, by_high):
                choices.append(sequence((point, digits, following)))
        return self._walk.rules.add("digits", either(choices)) if choices else None

    def _free(self, at: int) -> str:
        if at < self._length:
            first = "[1-9]" if at == 0 and self._length > 1 else "[0-9]"
            rest = repeat(self._walk.rules, _DIGITS, self._length - at - 1, self._length - at - 1)
            return sequence((first, rest, self._walk.tail(self._places)))
        if at == self._length:
            return self._walk.tail(self._places)
        return repeat(self._walk.rules, _DIGITS, 0, self._length + self._places - at)

    def _may_end(self, at: int, by_low: bool, by_high: bool) -> bool:
        """Whether the number may end here: whatever digits a bound has left count."""
        if by_low:
            rest = bool(self._low[at:].strip("0")) or self._low_rest
            if rest or not self._walk.low.inside:
                return False
        if by_high and self._walk.high is not None:
            rest = bool(self._high[at:].strip("0")) or self._high_rest
            return rest or self._walk.high.inside
        return True

    def _steps(self, at: int, by_low: bool, by_high: bool) -> Iterator[tuple[str, str]]:
        """Yield sets of next digits, and what may follow them."""
        least = int(self._low[at]) if by_low else int(at == 0 and self._length > 1)
        most = int(self._high[at]) if by_high else 9
        sets: dict[tuple[bool, bool], list[int]] = {}
        for digit in range(least, most + 1):
            state = by_low and digit == least, by_high and digit == most
            sets.setdefault(state, []).append(digit)
        for (still_low, still_high), digits in sets.items():
            following = self._known[at + 1, still_low, still_high]
            if following is not None:
                yield _set(digits), following


def _set(digits: list[int]) -> str:
    return characters((0x30 + digit, 0x30 + digit) for digit in digits)


def _length(value: Decimal) -> int:
    """Return how many digits stand before the point of a number that is not below 0."""
    return len(str(int(value)))


def _places(value: Decimal) -> int:
    """Return how many decimals a number has."""
    exponent = value.normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _multiples_between(rules: Rules, step: int, span: Range) -> str | None:
    """Return the expression of multiples of `step` in a range that begins at 0 or above."""
    assert span.low is not None
    low = str(int(span.low.value) + (not span.low.inside))
    high = str(_last_multiple(int(low), span.high))
    choices = [
        _multiples_of_length(rules, step, length, low, high)
        for length in range(len(low), len(high) + 1)
    ]
    written = [choice for choice in choices if choice is not None]
    return either(written) if written else None


def _last_multiple(low: int, high: Bound | None) -> int:
    if high is not None:
        return min(_MOST_LARGE_MULTIPLE, int(high.value))
    return _MOST_MULTIPLE if low < _MOST_MULTIPLE else _MOST_LARGE_MULTIPLE


def _multiples_of_length(rules: Rules, step: int, length: int, low: str, high: str) -> str | None:
    """Return the expression of multiples with so many digits, None if there are none.

    A state is how many digits are to come, whether they are those of a bound so far, and what the
    digits so far leave when they are divided by `step`.
    """
    known: dict[tuple[int, bool, bool, int], str | None] = {}

    def written(left: int, by_low: bool, by_high: bool, rest: int) -> str | None:
        if not left:
            return EMPTY if rest == 0 else None
        key = left, by_low, by_high, rest
        if key not in known:
            at = length - left
            least = int(low[at]) if by_low else int(at == 0 and length > 1)
            most = int(high[at]) if by_high else 9
            steps: dict[str, list[int]] = {}
            for digit in range(least, most + 1):
                following = written(
                    left - 1,
                    by_low and digit == least,
                    by_high and digit == most,
                    (rest * 10 + digit) % step,
                )
                if following is not None:
                    steps.setdefault(following, []).append(digit)
            choices = [sequence((_set(digits), name)) for name, digits in steps.items()]
            known[key] = rules.add("multiple", either(choices)) if choices else None
        return known[key]

    return written(length, length == len(low), length == len(high), 0)
