r"""Sets of characters of patterns, as narrow as ECMA-262 and Python read them.

Engines differ: to ECMA-262 `\W` has é and `.` has no U+2028, to Python it is the other way round.
What is written here, both take: a class that includes has what both include, and one that excludes
leaves out what either excludes.
"""

from runtime.grammar.ebnf import Ranges, complement, merged, without

LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
# What JSON does not write as it is.
ESCAPED: Ranges = ((0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C))

_DIGITS: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_BLANKS: Ranges = ((0x09, 0x0D), (0x20, 0x20))
# Whatever is a blank, or a separator of information, to either of the two.
_ALL_BLANKS: Ranges = (
    (0x09, 0x0D), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
    (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
# Parts of Unicode without decimal digits beyond ASCII's, and without letters and numbers.
_NO_DIGITS: Ranges = (
    (0x00, 0x2F), (0x3A, 0x65F), (0x1E00, 0xA61F), (0xAC00, 0xD7FF), (0xE000, 0xFF0F),
    (0xFF1A, 0xFFFF), (0x1F000, 0x1FAFF), (0x20000, 0x3FFFF),
)  # fmt: skip
_NO_WORDS: Ranges = (
    (0x00, 0x2F), (0x3A, 0x40), (0x5B, 0x5E), (0x60, 0x60), (0x7B, 0xA9), (0xAB, 0xB1),
    (0xB4, 0xB4), (0xB6, 0xB8), (0xBB, 0xBB), (0xBF, 0xBF), (0xD7, 0xD7), (0xF7, 0xF7),
    (0x2000, 0x206F), (0x20A0, 0x20CF), (0x2190, 0x245F), (0x2500, 0x2775), (0x2794, 0x2BFF),
    (0x3000, 0x3004), (0x3008, 0x3020), (0xE000, 0xF8FF), (0xFF01, 0xFF0F), (0x1F300, 0x1FAFF),
)  # fmt: skip
# What a class has for certain, and what it may have.
SURE: dict[str, Ranges] = {
    "d": _DIGITS,
    "w": _WORD,
    "s": _BLANKS,
    "D": _NO_DIGITS,
    "W": _NO_WORDS,
    "S": complement(_ALL_BLANKS),
}
POSSIBLE: dict[str, Ranges] = {
    name: complement(SURE[name.swapcase()]) if name != "s" else _ALL_BLANKS for name in SURE
}
ANY_BUT_LINE_ENDS = complement(LINE_ENDS)


def wide(ranges: Ranges, *, spelt: bool) -> Ranges:
    """Return a set that nobody listed one by one, in JSON without what is escaped there."""
    return without(ranges, ESCAPED) if spelt else merged(ranges)
