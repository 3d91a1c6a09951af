"""Objects as rules: named properties in the order of their naming, then the others that may follow.

    {"a": .., "b": ..}, b required   after "{": a, then b, then "}", or b at once

Where the number of properties is bounded, a rule knows how many are written so far.
"""

from collections.abc import Sequence
from typing import NamedTuple

from runtime.errors import GrammarError
from runtime.grammar.ebnf import EMPTY, Rules, either, sequence
from runtime.grammar.json_rules import JsonRules
from runtime.grammar.repetition import repeat

# Rules that know how many properties are written so far.
_MOST_RULES = 20_000


class Property(NamedTuple):
    """A named property: its key, a colon and its value as an expression."""

    pair: str
    required: bool


class Counts(NamedTuple):
    """How many properties there may be; no most: any number from `least` on."""

    least: int
    most: int | None


def object_rule(
    rules: Rules, json: JsonRules, named: Sequence[Property], others: Sequence[str], counts: Counts
) -> str:
    """Return the expression of an object.

    named   properties in the order of their writing
    others  expressions of further pairs, as many as there may be
    Raises GrammarError where no object has so many properties, or counting them takes too much.
    """
    starts, may_be_empty = _Properties(rules, json, named, others, counts).starts()
    if not starts and not may_be_empty:
        raise GrammarError(
            "no object fits 'properties', 'required', 'minProperties' and 'maxProperties'"
        )
    ends = ['"}"'] if may_be_empty else []
    filled = [f'{either(starts)} {json.blanks} "}}"'] if starts else []
    return f'"{{" {json.blanks} {either(filled + ends)}'


class _Properties:
    def __init__(
        self,
        rules: Rules,
        json: JsonRules,
        named: Sequence[Property],
        others: Sequence[str],
        counts: Counts,
    ) -> None:
        self._rules = rules
        self._json = json
        self._named = named
        self._others = others
        required = sum(prop.required for prop in named)
        least = counts.least if counts.least > required else 0
        most = counts.most
        if most is not None and not others and most >= len(named):
            most = None
        self._least, self._most = least, most
        # A count from here on is as good as this one.
        self._enough = len(named) if most is not None else min(least, len(named))
        if len(named) * (self._enough + 1) > _MOST_RULES:
            raise GrammarError(
                "the schema keywords 'minProperties' and 'maxProperties' cannot be enforced "
                f"beside {len(named)} properties"
            )

    def starts(self) -> tuple[list[str], bool]:
        """Return the expressions of all pairs, each of another first one, and whether there may
        be none at all.
        """
        starts = self._only_others()
        may_be_empty = not self._least
        following = [self._end(count) for count in range(self._enough + 1)]
        for prop in reversed(self._named):
            then = following[min(1, self._enough)]
            if prop.required:
                starts, may_be_empty = [], False
            if then is not None and self._most != 0:
                starts.append(sequence((prop.pair, then)))
            following = [self._at(prop, count, following) for count in range(self._enough + 1)]
        return starts[::-1], may_be_empty

    def _at(self, prop: Property, count: int, following: list[str | None]) -> str | None:
        """Return what may follow at a property after `count` others, None if nothing may."""
        choices: list[str] = []
        then = following[min(count + 1, self._enough)]
        if then is not None and (self._most is None or count < self._most):
            choices.append(sequence((self._json.comma, prop.pair, then)))
        without = following[count]
        if not prop.required and without is not None:
            choices.append(without)
        return self._rules.add("after", either(choices)) if choices else None

    def _end(self, count: int) -> str | None:
        """Return what may follow the last named property after `count`, None if nothing may."""
        least = max(0, self._least - count)
        if not self._others:
            return None if least or self._too_many(count) else EMPTY
        if self._too_many(count):
            return None
        most = None if self._most is None else self._most - count
        unit = [f"{self._json.comma} {pair}" for pair in self._others]
        return self._repeated(unit, least, most)

    def _only_others(self) -> list[str]:
        """Return the expressions of pairs none of which is named."""
        if not self._others or self._most == 0:
            return []
        unit = [f"{self._json.comma} {pair}" for pair in self._others]
        most = None if self._most is None else self._most - 1
        more = self._repeated(unit, max(0, self._least - 1), most)
        return [sequence((pair, more)) for pair in self._others]

    def _too_many(self, count: int) -> bool:
        return self._most is not None and count > self._most

    def _repeated(self, unit: list[str], least: int, most: int | None) -> str:
        return self._rules.add("others", repeat(self._rules, unit, least, most))
