"""Counted repetitions as rules that are few, quick to compile and cheap to match.

The compiler's own form of `x{0,n}` above 128 keeps 128 readings of each position: measured, 540 MB
for 100,000 characters. Here a count is written in base 32, as blocks of 32 units, blocks of 32 such
blocks and so on; about two readings of a position are open at a time.

    x{0,2000}   at most 1 block of 1024, then at most 30 blocks of 32, then at most 16 units
"""

from collections.abc import Sequence

from runtime.grammar.ebnf import EMPTY, Rules, either, sequence

_BASE = 32
# So many units are written one after the other.
_FEW = 4
# Characters from which on a block may end amid a token often enough to matter.
_LONG = 3 * _BASE


def repeat(rules: Rules, unit: Sequence[str], least: int, most: int | None) -> str:
    """Return the expression of `least` to `most` units; no most: any number from `least` on.

    unit  expressions to choose from, none of which may be empty
    """
    plain = _plain(rules, unit, least, most)
    if not unit[0].startswith("[") or max(least, most or 0) < _LONG:
        return plain
    # A second reading, half a block behind. What a token does that passes the end of a block takes
    # long to find out, and need not be where the other reading allows it.
    rest = None if most is None else most - _BASE // 2
    later = _plain(rules, unit, max(0, least - _BASE // 2), rest)
    return either((plain, sequence((_digit(rules, unit, 1, _BASE // 2), later))))


def _plain(rules: Rules, unit: Sequence[str], least: int, most: int | None) -> str:
    any_more = _any_number(rules, unit) if most is None else _at_most(rules, unit, most - least)
    return sequence((_exactly(rules, unit, least), any_more))


def _any_number(rules: Rules, unit: Sequence[str]) -> str:
    if len(unit) == 1 and unit[0].startswith("["):
        return f"{unit[0]}*"
    name = rules.reserve("any")
    body = either((EMPTY, *(f"{part} {name}" for part in unit)))
    rules.define(name, body)
    return name


def _exactly(rules: Rules, unit: Sequence[str], count: int) -> str:
    """Return the expression of so many units."""
    if count <= _FEW and len(unit) == 1:
        return sequence([unit[0]] * count)
    parts: list[str] = []
    size, left = 1, count
    while left:
        left, digit = divmod(left, _BASE)
        if digit:
            parts.append(_digit(rules, unit, size, digit))
        size *= _BASE
    return sequence(reversed(parts))


def _digit(rules: Rules, unit: Sequence[str], size: int, count: int) -> str:
    """Return the expression of fewer than 32 blocks of `size` units."""
    block = unit if size == 1 else (_block(rules, unit, size),)
    return _chain(rules, block, count, end="")


def _block(rules: Rules, unit: Sequence[str], size: int) -> str:
    """Return the expression of `size` units, a power of 32."""
    inner = unit if size == _BASE else (_block(rules, unit, size // _BASE),)
    return _chain(rules, inner, _BASE, end="")


def _chain(rules: Rules, unit: Sequence[str], count: int, *, end: str) -> str:
    """Return the name of a rule of so many units and then `end`."""
    name = end
    for _ in range(count):
        name = rules.add("n", either(f"{part} {name}".rstrip() for part in unit))
    return name


def _at_most(rules: Rules, unit: Sequence[str], most: int) -> str:
    """Return the expression of 0 to `most` units."""
    if most < _BASE:
        return _up_to(rules, unit, most, EMPTY)
    size = _BASE
    while size * _BASE <= most:
        size *= _BASE
    count, rest = divmod(most, size)
    # After the last of all blocks `rest` units may follow, after each block before fewer than one.
    less = _less_than(rules, unit, size)
    name = _at_most(rules, unit, rest)
    block = _block(rules, unit, size)
    for _ in range(count):
        name = rules.add("m", either((less, f"{block} {name}".removesuffix(f" {EMPTY}"))))
    return name


def _less_than(rules: Rules, unit: Sequence[str], size: int) -> str:
    """Return the expression of 0 to `size` - 1 units, where size is a power of 32."""
    if size == _BASE:
        return _up_to(rules, unit, _BASE - 1, EMPTY)
    smaller = size // _BASE
    return _up_to(
        rules, (_block(rules, unit, smaller),), _BASE - 1, _less_than(rules, unit, smaller)
    )


def _up_to(rules: Rules, unit: Sequence[str], most: int, end: str) -> str:
    """Return the expression of 0 to `most` units and then `end`, one unit at a time."""
    name = end
    for _ in range(most):
        following = "" if name == EMPTY else f" {name}"
        name = rules.add("m", either((end, *(part + following for part in unit))))
    return name
