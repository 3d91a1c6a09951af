"""Deterministic automata of patterns that can be read in many ways, as rules with one reading each.

Where a text can be read in many ways, matching it keeps all of them; an automaton keeps one state.
"""

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable

from runtime.grammar.ebnf import EMPTY, Ranges, Rules, either, merged
from runtime.grammar.regex_tree import Characters, Choice, Node, Repeat, Sequence

# More states cost the compiler too much time.
_MOST_STATES = 400
_MOST_PLACES = 3000
# Steps of finding them: less than a second.
_MOST_WORK = 1_000_000

_Places = frozenset[int]
Spelling = Callable[[Ranges], list[str]]


class _TooLarge(Exception):
    """The automaton has more states than it may."""


class _Automaton:
    """A non-deterministic automaton: place 0 is the end, each other reads a set or goes on."""

    def __init__(self) -> None:
        self.sets: list[Ranges | None] = [None]
        self.following: list[tuple[int, ...]] = [()]
        self._work = 0

    def _place(self, ranges: Ranges | None, *following: int) -> int:
        if len(self.sets) > _MOST_PLACES:
            raise _TooLarge
        self.sets.append(ranges)
        self.following.append(following)
        return len(self.sets) - 1

    def before(self, node: Node, end: int) -> int:
        """Return the place from which a node leads to `end`."""
        match node:
            case Characters(ranges):
                return self._place(ranges, end)
            case Sequence(parts):
                for part in reversed(parts):
                    end = self.before(part, end)
                return end
            case Choice(parts):
                return self._place(None, *(self.before(part, end) for part in parts))
            case Repeat():
                return self._before_repeat(node, end)

    def _before_repeat(self, node: Repeat, end: int) -> int:
        if node.most is None:
            loop = self._place(None)
            self.following[loop] = (self.before(node.part, loop), end)
            start = loop
        else:
            start = end
            for _ in range(node.most - node.least):
                start = self._place(None, self.before(node.part, start), end)
        for _ in range(node.least):
            start = self.before(node.part, start)
        return start

    def closed(self, places: Iterable[int]) -> _Places:
        """Return the places that read something, or are the end, which these lead to."""
        found: set[int] = set()
        waiting = list(places)
        while waiting:
            place = waiting.pop()
            if place in found:
                continue
            found.add(place)
            self._work += 1
            if self.sets[place] is None:
                waiting += self.following[place]
        return frozenset(p for p in found if p == 0 or self.sets[p] is not None)

    def steps(self, places: _Places) -> dict[_Places, list[tuple[int, int]]]:
        """Return which characters lead from these places where."""
        reading = [(self.sets[p] or (), self.following[p]) for p in sorted(places) if p]
        edges = sorted({edge for ranges, _ in reading for a, b in ranges for edge in (a, b + 1)})
        targets: list[set[int]] = [set() for _ in edges]
        for ranges, following in reading:
            for low, high in ranges:
                first, last = bisect_left(edges, low), bisect_left(edges, high + 1)
                self._work += last - first
                for k in range(first, last):
                    targets[k].update(following)
        if self._work > _MOST_WORK:
            raise _TooLarge
        steps: dict[_Places, list[tuple[int, int]]] = {}
        for (low, high), following in zip(itertools.pairwise(edges), targets, strict=False):
            if following:
                steps.setdefault(self.closed(following), []).append((low, high - 1))
        return steps


def automaton_rule(rules: Rules, node: Node, spelling: Spelling) -> str | None:
    """Return the rule of a pattern's automaton, None if it would be too large.

    spelling  how the characters of a set are written
    """
    try:
        states = _states(_Automaton(), node)
    except _TooLarge:
        return None
    names = {places: rules.reserve("state") for places in states}
    for places, steps in states.items():
        choices = [EMPTY] if 0 in places else []
        for target, ranges in steps.items():
            choices += (f"{part} {names[target]}" for part in spelling(merged(ranges)))
        rules.define(names[places], either(choices))
    return names[next(iter(states))]


def _states(
    automaton: _Automaton, node: Node
) -> dict[_Places, dict[_Places, list[tuple[int, int]]]]:
    """Return the steps from each state of the deterministic automaton, the start's first.

    Raises _TooLarge.
    """
    start = automaton.closed((automaton.before(node, 0),))
    states: dict[_Places, dict[_Places, list[tuple[int, int]]]] = {start: {}}
    waiting = [start]
    while waiting:
        places = waiting.pop()
        states[places] = automaton.steps(places)
        for target in states[places]:
            if target not in states:
                if len(states) > _MOST_STATES:
                    raise _TooLarge
                states[target] = {}
                waiting.append(target)
    return states
