"""Patterns as rules of a grammar: of text that stands by itself, or of strings as JSON spells them.

^a["b].{2,300}$   a, then b or a quote as JSON spells it, then a counted repetition
"""

from typing import NamedTuple

from runtime.errors import GrammarError
from runtime.grammar.ebnf import (
    EMPTY,
    Ranges,
    Rules,
    characters,
    common,
    complement,
    either,
    is_misread,
    literal,
    sequence,
    without,
)
from runtime.grammar.regex_automaton import automaton_rule
from runtime.grammar.regex_classes import ESCAPED
from runtime.grammar.regex_parser import parse
from runtime.grammar.regex_tree import (
    ENDLESS,
    Characters,
    Choice,
    Node,
    Repeat,
    Sequence,
    facts,
)
from runtime.grammar.repetition import repeat

# Readings of a text at a time: so many take about 15 KB for each character (measured).
_MOST_READINGS = 256
_SHORT = {0x22: '"', 0x5C: "\\", 0x0A: "n", 0x09: "t", 0x0D: "r", 0x0C: "f", 0x08: "b"}
_QUOTE = literal('"')
# A character of a string: as it is, or with a short escape, so that each text has one spelling.
_CHARACTER = (characters(complement(ESCAPED)), '"\\\\" ["\\\\bfnrt]')


class Length(NamedTuple):
    """How many characters a string may have; no most: any number from `least` on."""

    least: int = 0
    most: int | None = None


def text_rule(rules: Rules, pattern: str) -> str:
    """Return the expression of text that a pattern matches as a whole. Raises GrammarError."""
    return _Writer(rules, spelt=False).write(parse(pattern, spelt=False), pattern)


def string_of_length(rules: Rules, length: Length) -> str:
    """Return the expression of a string with so many characters, in its quotes."""
    return sequence((_QUOTE, repeat(rules, _CHARACTER, *length), _QUOTE))


def string_of_pattern(rules: Rules, pattern: str, length: Length) -> str:
    """Return the expression of a string that a pattern matches, in its quotes.

    Raises GrammarError for a length that has to be counted while the pattern is.
    """
    return sequence((_QUOTE, pattern_body(rules, pattern, length), _QUOTE))


def pattern_body(rules: Rules, pattern: str, length: Length) -> str:
    """Return the expression of what stands between the quotes. Raises GrammarError."""
    node = _of_length(parse(pattern, spelt=True), length, pattern)
    return _Writer(rules, spelt=True).write(node, pattern)


def _of_length(node: Node, length: Length, pattern: str) -> Node:
    """Return the node of the texts that have this length too. Raises GrammarError."""
    shape = facts(node)
    most = ENDLESS if length.most is None else length.most
    if length.least <= shape.shortest and shape.longest <= most:
        return node
    if shape.longest < length.least or most < shape.shortest:
        raise GrammarError(
            f"no text of the pattern {pattern[:80]!r} has the length that 'minLength' and "
            "'maxLength' say"
        )
    counted = node if isinstance(node, Repeat) else Repeat(node, 1, 1)
    if not isinstance(counted.part, Characters):
        raise GrammarError(
            f"the schema keywords 'minLength' and 'maxLength' cannot be enforced beside the "
            f"pattern {pattern[:80]!r}, whose texts have {shape.shortest} characters "
            f"{'or more' if shape.longest >= ENDLESS else f'to {shape.longest}'}: "
            "say the length in the pattern"
        )
    least = max(counted.least, length.least)
    upper = min(ENDLESS if counted.most is None else counted.most, most)
    return Repeat(counted.part, least, None if upper >= ENDLESS else upper)


class _Writer:
    """Writes a tree as an expression.

    spelt  whether characters are spelt as in JSON
    """

    def __init__(self, rules: Rules, *, spelt: bool) -> None:
        self._rules = rules
        self._spelt = spelt

    def write(self, node: Node, pattern: str) -> str:
        """Return the expression of a whole pattern. Raises GrammarError."""
        if facts(node).readings <= _MOST_READINGS:
            return self._node(node)
        rule = automaton_rule(self._rules, node, self._set)
        if rule is None:
            raise GrammarError(
                f"the pattern {pattern[:80]!r} can be read in too many ways at a time: repeat "
                "what cannot be taken for what stands beside it, or less often"
            )
        return rule

    def _node(self, node: Node) -> str:
        match node:
            case Characters(ranges):
                return either(self._set(ranges))
            case Sequence(parts):
                return self._sequence(parts)
            case Choice(parts):
                return self._rules.add("or", either(self._node(part) for part in parts))
            case Repeat(part, least, most):
                if isinstance(part, Characters):
                    unit = self._set(part.ranges)
                else:
                    unit = [self._rules.add("part", self._node(part))]
                return repeat(self._rules, unit, least, most)

    def _sequence(self, parts: tuple[Node, ...]) -> str:
        """Return the expression of all parts; neighbours of one character each are one literal."""
        written: list[str] = []
        text = ""
        for part in parts:
            single = self._single(part)
            if single:
                text += single
                continue
            if text:
                written.append(literal(text))
            text = ""
            written.append(self._node(part))
        return sequence((*written, literal(text) if text else EMPTY))

    def _single(self, node: Node) -> str:
        """Return the spelling of the one character that a node is, if it is one."""
        if not isinstance(node, Characters) or len(node.ranges) != 1:
            return ""
        [(low, high)] = node.ranges
        if low != high or low == 0:
            return ""
        return escape(low) if self._spelt else chr(low)

    def _set(self, ranges: Ranges) -> list[str]:
        """Return expressions of which each character of a set has one."""
        if not self._spelt:
            return [self._plain_set(ranges)]
        plain, escaped = without(ranges, ESCAPED), common(ranges, ESCAPED)
        codes = [code for low, high in escaped for code in range(low, high + 1)]
        return ([self._plain_set(plain)] if plain else []) + [literal(escape(c)) for c in codes]

    def _plain_set(self, ranges: Ranges) -> str:
        """Return the expression of one character of these; of a rule where it might be misread."""
        expression = characters(ranges)
        return self._rules.add("set", expression) if is_misread(ranges) else expression


def escape(code: int) -> str:
    """Return the spelling of a character in a JSON string, the only one that is used here."""
    if code in _SHORT:
        return "\\" + _SHORT[code]
    return f"\\u{code:04x}" if code < ESCAPED[0][1] + 1 else chr(code)
