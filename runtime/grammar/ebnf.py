"""Rules of a grammar as text, in the notation that the compiler reads.

Equal bodies are one rule, however often they are asked for: what a schema repeats is compiled once.
"""

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]

EMPTY = '""'
_ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LAST = 0x10FFFF
_ASCII_END = 0x80


class Rules:
    """Named rules; a name is taken when it is first asked for."""

    def __init__(self) -> None:
        self._bodies: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def add(self, hint: str, body: str) -> str:
        """Return the name of the rule with this body, a new one if there is none."""
        name = self._names.get(body)
        if name is None:
            name = self.reserve(hint)
            self.define(name, body)
        return name

    def reserve(self, hint: str) -> str:
        """Return a new name, to be defined later."""
        name = f"{hint}_{len(self._bodies)}"
        self._bodies[name] = ""
        return name

    def define(self, name: str, body: str) -> None:
        """Say the body of a name that was reserved."""
        self._bodies[name] = body
        self._names.setdefault(body, name)

    def text(self, root: str) -> str:
        """Return all rules; outputs follow the one that is named `root` here."""
        lines = [f"root ::= {root}", *(f"{name} ::= {body}" for name, body in self._bodies.items())]
        return "\n".join(lines)


def literal(text: str) -> str:
    """Return the expression of a text as it is."""
    return '"' + "".join(_ESCAPED.get(c, c) for c in text) + '"'


def characters(ranges: Iterable[tuple[int, int]]) -> str:
    """Return the expression of one character of these ranges, which must not be empty.

    Where a set follows a rule, the compiler looks at the last byte alone of the codes that begin
    and end a range (measured with xgrammar 0.2.8: `x` is taken for one of U+4E00 to U+9FFF). Ranges
    are written so that no character of ASCII's is mistaken, but for those that `is_misread` names.
    """
    written = [part for low, high in merged(ranges) for part in _pieces(low, high)]
    spelt = [_code(low) if low == high else f"{_code(low)}-{_code(high)}" for low, high in written]
    return f"[{''.join(spelt)}]"


def is_misread(ranges: Iterable[tuple[int, int]]) -> bool:
    """Whether the compiler mistakes characters of ASCII's for some of these, behind a rule."""
    written = [part for low, high in merged(ranges) for part in _pieces(low, high)]
    return any(
        low >= _ASCII_END and max(1, low & 0xFF) <= min(high & 0xFF, _ASCII_END - 1)
        for low, high in written
    )


def _pieces(low: int, high: int) -> list[tuple[int, int]]:
    """Return ranges that cover one range, whose last bytes begin beyond ASCII's or end first."""
    if low < _ASCII_END <= high:
        return [(low, _ASCII_END - 1), *_pieces(_ASCII_END, high)]
    start, next_block = low & 0xFF, (low | 0xFF) + 1
    if low < _ASCII_END or start >= _ASCII_END or start > high & 0xFF or high < next_block:
        return [(low, high)]
    # NUL alone is taken for the first of a block, and is in no token with others.
    first = [(low, low)] if start == 0 else []
    return [*first, (low + len(first), next_block), (next_block - _ASCII_END, high)]


def either(choices: Iterable[str]) -> str:
    """Return the expression of one of these, in brackets if there are several."""
    distinct = list(dict.fromkeys(choices))
    return distinct[0] if len(distinct) == 1 else f"({' | '.join(distinct)})"


def sequence(parts: Iterable[str]) -> str:
    """Return the expression of all of these, one after the other."""
    return " ".join(part for part in parts if part != EMPTY) or EMPTY


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return ranges of code points in order, without overlaps."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return tuple(joined)


def without(ranges: Iterable[tuple[int, int]], excluded: Iterable[tuple[int, int]]) -> Ranges:
    """Return the ranges of what is in the first and not in the second."""
    return common(ranges, complement(excluded))


def complement(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the ranges of all characters that are not in these."""
    left: list[tuple[int, int]] = []
    start = 0
    for low, high in merged(ranges):
        left.append((start, low - 1))
        start = high + 1
    return tuple((low, high) for low, high in (*left, (start, _LAST)) if low <= high)


def common(ranges: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]]) -> Ranges:
    """Return the ranges of what is in both."""
    seconds = merged(others)
    pairs = ((max(a, c), min(b, d)) for a, b in merged(ranges) for c, d in seconds)
    return tuple((low, high) for low, high in pairs if low <= high)


def _code(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
