"""Patterns as trees, and what of their shape decides how they are written as rules."""

from dataclasses import dataclass
from functools import cached_property
from typing import Union

from runtime.grammar.ebnf import Ranges, common, merged

Node = Union["Characters", "Sequence", "Choice", "Repeat"]
# A count that stands for none.
ENDLESS = 1 << 40


@dataclass(frozen=True)
class Characters:
    """One character of these ranges of code points."""

    ranges: Ranges


@dataclass(frozen=True)
class Sequence:
    """All parts, one after the other; no part is the empty text."""

    parts: tuple[Node, ...]

    @cached_property
    def facts(self) -> "Facts":
        """Return the facts of the whole, kept: they are looked up again for each node around."""
        return _of_sequence(self.parts)


@dataclass(frozen=True)
class Choice:
    """One of the parts."""

    parts: tuple[Node, ...]

    @cached_property
    def facts(self) -> "Facts":
        """Return the facts of the whole."""
        return _of_choice(self.parts)


@dataclass(frozen=True)
class Repeat:
    """A part from `least` to `most` times; no most: any number from `least` on."""

    part: Node
    least: int
    most: int | None

    @cached_property
    def facts(self) -> "Facts":
        """Return the facts of the whole."""
        return _of_repeat(self)


@dataclass(frozen=True)
class Facts:
    """The shape of what a node matches.

    shortest, longest  in characters; longest is ENDLESS at most
    first              what it may begin with
    after              what may follow inside where it could end as well
    alphabet           what it may have anywhere
    needs              sets, each of which it has a character of
    between            sets, each of which a text has a character of between two places where it
                       could end
    readings           how many ways of reading one text are open at a time, at most, roughly
    """

    shortest: int
    longest: int
    first: Ranges
    after: Ranges
    alphabet: Ranges
    needs: tuple[Ranges, ...]
    between: tuple[Ranges, ...]
    readings: int

    @property
    def varies(self) -> int:
        """How much longer than the shortest the longest text is."""
        return self.longest - self.shortest


_NOTHING = Facts(0, 0, (), (), (), (), (), 1)


def facts(node: Node) -> Facts:
    """Return the facts of a node."""
    if isinstance(node, Characters):
        return Facts(1, 1, node.ranges, (), node.ranges, (node.ranges,), (), 1)
    return node.facts


def solid(node: Node) -> Node:
    """Return a node for all that a node matches but the empty text, which is not all of it."""
    match node:
        case Characters():
            return node
        case Choice(parts):
            return choice([solid(part) for part in parts if facts(part).longest])
        case Repeat(part, least, most):
            return Repeat(solid(part), max(1, least if facts(part).shortest else 1), most)
        case Sequence(parts):
            if facts(node).shortest:
                return node
            ways = [
                sequence([solid(part), *parts[k + 1 :]])
                for k, part in enumerate(parts)
                if facts(part).longest
            ]
            return choice(ways)


def sequence(parts: list[Node]) -> Node:
    """Return a sequence, flat, without what matches the empty text alone."""
    flat: list[Node] = []
    for part in parts:
        flat += part.parts if isinstance(part, Sequence) else (part,)
    kept: list[Node] = []
    for part in flat:
        if facts(part).longest:
            kept[-1:] = _together(kept[-1], part) if kept else (part,)
    return kept[0] if len(kept) == 1 else Sequence(tuple(kept))


def _together(a: Node, b: Node) -> tuple[Node, ...]:
    """Return two neighbours, as one where they repeat the same set."""
    first = a if isinstance(a, Repeat) else Repeat(a, 1, 1)
    second = b if isinstance(b, Repeat) else Repeat(b, 1, 1)
    both_single = isinstance(a, Characters) and isinstance(b, Characters)
    if both_single or first.part != second.part or not isinstance(first.part, Characters):
        return a, b
    endless = first.most is None or second.most is None
    most = None if endless else (first.most or 0) + (second.most or 0)
    return (Repeat(first.part, first.least + second.least, most),)


def choice(parts: list[Node]) -> Node:
    """Return a choice; characters to choose from are one set."""
    sets = [part for part in parts if isinstance(part, Characters)]
    if len(sets) == len(parts):
        return Characters(merged(pair for part in sets for pair in part.ranges))
    distinct = tuple(dict.fromkeys(parts))
    return distinct[0] if len(distinct) == 1 else Choice(distinct)


def _of_sequence(parts: tuple[Node, ...]) -> Facts:
    whole = _NOTHING
    for part in parts:
        whole = _joined(whole, facts(part))
    return whole


def _joined(a: Facts, b: Facts) -> Facts:
    """Return the facts of one after the other."""
    readings = max(a.readings, b.readings)
    alphabet = merged((*a.alphabet, *b.alphabet))
    after = b.after if b.shortest else merged((*a.after, *b.first, *b.after))
    between = () if a.varies else b.between
    if a.varies and common(a.after, b.first):
        # The second may begin at several places, and the first go on where it could have ended.
        after = alphabet
        if any(not common(needed, b.alphabet) for needed in a.between):
            readings += 1  # From one such place to the next the second cannot come.
        else:
            readings = max(readings, min(a.varies, b.longest) * b.readings)
    return Facts(
        a.shortest + b.shortest,
        min(ENDLESS, a.longest + b.longest),
        a.first if a.shortest else merged((*a.first, *b.first)),
        after,
        alphabet,
        a.needs + b.needs,
        between,
        min(ENDLESS, readings),
    )


def _of_choice(parts: tuple[Node, ...]) -> Facts:
    all_facts = [facts(part) for part in parts]
    after = [pair for fact in all_facts for pair in fact.after]
    for part in _overlapping(parts):
        # It may be the beginning of another.
        after += facts(part).alphabet
    if any(not fact.shortest for fact in all_facts):
        after += [pair for fact in all_facts for pair in fact.first]
    return Facts(
        min(fact.shortest for fact in all_facts),
        max(fact.longest for fact in all_facts),
        merged(pair for fact in all_facts for pair in fact.first),
        merged(after),
        merged(pair for fact in all_facts for pair in fact.alphabet),
        (),
        (),
        min(ENDLESS, sum(fact.readings for fact in all_facts)),
    )


def _overlapping(parts: tuple[Node, ...]) -> list[Node]:
    """Return the parts that begin with a character with which another one begins."""
    starts = sorted(
        (low, high, k) for k, part in enumerate(parts) for low, high in facts(part).first
    )
    found: set[int] = set()
    reach, holder = -1, -1
    for low, high, k in starts:
        if low <= reach and holder != k:
            found |= {holder, k}
        if high > reach:
            reach, holder = high, k
    return [parts[k] for k in sorted(found)]


def _of_repeat(node: Repeat) -> Facts:
    part = facts(node.part)
    most = ENDLESS if node.most is None else node.most
    longest = min(ENDLESS, part.longest * most)
    shortest = part.shortest * node.least
    readings = part.readings
    if most > 1 and part.varies and common(part.after, part.first):
        readings = max(readings, longest - shortest)
    after = merged((*part.after, *part.first)) if most > node.least else part.after
    needs = part.needs if node.least else ()
    between = () if part.varies and part.after else part.needs
    return Facts(shortest, longest, part.first, after, part.alphabet, needs, between, readings)
