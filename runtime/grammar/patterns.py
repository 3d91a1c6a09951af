r"""Patterns of JSON schemas as the compiler has to be given them.

It reads a pattern in one of two ways. As one automaton it takes what does not match (measured, with
xgrammar 0.2.8: `^a(xy+)?$` takes `ay`, `^((x|(x|))|x(x|))$` takes `xxxx`). As rules of a grammar it
reads it rightly, but would write quotes, backslashes and control characters into JSON as they are.
So a pattern is said here as the pattern of how its strings are spelt in JSON, and taken as rules.

    ^a["b].\n$   becomes   ^(é){0}a(?:[b]|\\")[^\"\\\x00-\x1f]\\n$
"""

import re
import string
from collections.abc import Iterator

from runtime.errors import GrammarError

# A pattern with other characters than ASCII's is taken as rules. None of one is nothing.
AS_RULES = "(é){0}"

_POSIX = re.compile(r"\[([:.=])\^?[A-Za-z-]+\1\]")
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_CODE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4}))")
_CARET = re.compile(r"\\(?:\^|x5[eE]|u005[eE])")
_BAD = r"\"\\\x00-\x1f"
# Blanks of ECMA-262 and of Python beyond ASCII's; the compiler's \s has one of them.
_BLANKS = r"\x1c-\x1f\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_SPELT = {'"': '"', "\\": "\\", "\n": "n", "\t": "t", "\r": "r", "\f": "f", "\b": "b"}
_SETS = {
    ".": f"[^{_BAD}]",
    r"\D": f"[^0-9{_BAD}]",
    r"\S": rf"[^\s{_BLANKS}{_BAD}]",
    r"\W": f"[^A-Za-z0-9_{_BAD}]",
    r"\s": "[ ]",
}
_ALL = ({r"\s", r"\S"}, {r"\d", r"\D"}, {r"\w", r"\W"})
_OPPOSITES = (r"\D", r"\S", r"\W")
_CLASSES = (r"\d", r"\s", r"\w", *_OPPOSITES)
_WORD = string.digits + string.ascii_letters + "_"
_SPACE = 0x20
# Measured: the compiler reads some of them wrongly in sets, even as `\\^` or as codes.
_SPECIAL = "-[]^"
_ORDINARY = ((_SPACE, 0x21), (0x23, 0x2C), (0x2E, 0x5A), (0x5F, 0x10FFFF))


def check_pattern(pattern: str) -> None:
    """Raise GrammarError for a POSIX class, which the compiler takes for a set of its letters."""
    for part in _parts(pattern):
        found = _POSIX.search(_ESCAPE.sub("", part), 1) if part.startswith("[") else None
        if found is not None:
            raise GrammarError(
                f"the pattern has the POSIX class {found[0]}, which is not supported: "
                "write its characters, such as [A-Za-z]"
            )


def text_pattern(pattern: str) -> str:
    """Return `pattern` as it has to be said of text that stands by itself.

    Measured: the compiler takes a caret at a set's beginning for the sign that the set excludes,
    escaped or not, lets `.` be the end of a line, and `\\S` most blanks beyond ASCII's; `\\x` takes
    as many digits as follow. Raises GrammarError for POSIX classes.
    """
    check_pattern(pattern)
    return "".join(map(_text_part, _parts(_four_digits(pattern))))


def json_pattern(pattern: str) -> str:
    """Return the pattern of the spelling in JSON, between its quotes, of what `pattern` matches.

    `.`, `\\D`, `\\S`, `\\W` and sets that exclude go without what JSON escapes. Raises GrammarError
    for POSIX classes, and for a part that cannot be said so.
    """
    check_pattern(pattern)
    said = [
        _json_set(part) if part.startswith("[") else _json_part(part)
        for part in _without_anchors(list(_parts(pattern)))
    ]
    return f"^{AS_RULES}{''.join(said)}$"


def _unsaid(part: str) -> GrammarError:
    return GrammarError(f"the pattern has {part[:80]!r}, which is not supported")


def _parts(pattern: str, *, sets: bool = True) -> Iterator[str]:
    """Yield the sets, escapes and single characters that a pattern, or a set, is made of."""
    at = 0
    while at < len(pattern):
        end = at + 1
        if sets and pattern[at] == "[":
            end = _set_end(pattern, at)
        elif pattern[at] == "\\":
            code = _CODE.match(pattern, at)
            end = at + 2 if code is None else code.end()
        yield pattern[at:end]
        at = end


def _set_end(pattern: str, at: int) -> int:
    """Return the index behind the set that begins at `at`; a POSIX class does not end it."""
    at += 1
    while at < len(pattern) and pattern[at] != "]":
        found = _POSIX.match(pattern, at)
        at = found.end() if found else at + (2 if pattern[at] == "\\" else 1)
    return at + 1


def _without_anchors(parts: list[str]) -> list[str]:
    """Leave out the anchors of whole alternatives: the whole string has to match anyway."""
    kept: list[str] = []
    depth = 0
    for k, part in enumerate(parts):
        depth += (part == "(") - (part == ")")
        first = depth == 0 and (k == 0 or parts[k - 1] == "|")
        last = depth == 0 and (k + 1 == len(parts) or parts[k + 1] == "|")
        if not ((part == "^" and first) or (part == "$" and last)):
            kept.append(part)
    return ["(?:", *kept, ")"] if "|" in kept else kept


def _four_digits(pattern: str) -> str:
    r"""Return a pattern with `\u00HH` for `\xHH`."""
    parts = _parts(pattern, sets=False)
    return "".join(rf"\u00{p[2:]}" if p.startswith(r"\x") and len(p) == 4 else p for p in parts)


def _text_part(part: str) -> str:
    if part == ".":
        return r"[^\n\r]"
    if part == r"\S":
        return rf"[^\s{_BLANKS}]"
    return _text_set(part) if part.startswith("[") else part


def _text_set(text: str) -> str:
    members = list(_parts(text[1:-1], sets=False))
    if any(pair <= set(members) for pair in _ALL):
        return text
    if text.startswith("[^"):
        # In front, or a hyphen behind would make a range.
        return "[" + "".join(_BLANKS + m if m == r"\s" else m for m in members) + "]"
    if r"\S" in members:
        # A digit is no blank anyway, and keeps apart what stands around it.
        rest = "".join(r"\d" if m == r"\S" else m for m in members)
        return rf"(?:[^\s{_BLANKS}]|{_without_caret(f'[{rest}]')})"
    return _without_caret(text)


def _without_caret(text: str) -> str:
    """Return a set that includes without a caret at its beginning."""
    if not _CARET.match(text, 1):
        return text
    rest = text[1:-1]
    while (found := _CARET.match(rest)) or rest.startswith("^"):
        rest = rest[found.end() if found else 1 :]
    if rest.startswith("-") and len(rest) > 1:
        rest = "_" + rest  # a range from the caret on: from the character behind it
    return rf"(?:\^|[{rest}])" if rest else r"\^"


def _json_part(part: str) -> str:
    """Return the spelling of a character or escape. Raises GrammarError."""
    if part in _SETS:
        return _SETS[part]
    if part == "\\":
        raise _unsaid(part)
    if len(part) == 1:
        return _literal(part) if _is_escaped(part) else part
    code = _code(part)
    if code is not None:
        return _literal(code) if _is_escaped(code) else re.escape(code)
    if part[1].isalnum() and part not in _CLASSES:
        raise _unsaid(part)
    return part


def _is_escaped(character: str) -> bool:
    return character in _SPELT or ord(character) < _SPACE


def _code(part: str) -> str | None:
    """Return the character that an escape stands for, if it is a code, a control or a quote."""
    if part[1:] in _CONTROLS:
        return _CONTROLS[part[1:]]
    if part[1:] in ('"', "\\"):
        return part[1:]
    found = _CODE.fullmatch(part)
    return None if found is None else chr(int(found[1] or found[2], 16))


def _literal(character: str) -> str:
    """Return the pattern of a character's escape in JSON, as one atom."""
    spelt = _SPELT.get(character, f"u{ord(character):04x}")
    return "(?:" + re.escape("\\" + spelt) + ")"


def _json_set(text: str) -> str:
    """Return a set without what JSON escapes, or'ed with how that is spelt. Raises GrammarError."""
    if not text.endswith("]") or len(text) < 3:
        raise _unsaid(text)
    excludes = text[1] == "^"
    members = list(_parts(text[1 + excludes : -1], sets=False))
    opposites = sorted(set(members).intersection(_OPPOSITES))
    if not excludes and any(pair <= set(members) for pair in _ALL):
        return f"[^{_BAD}]"
    if excludes and opposites:
        return _common_set(text, " " if r"\S" in opposites else _WORD)
    plain, special, escaped = _members(members, blank=rf"\s{_BLANKS}" if excludes else " ")
    if excludes:
        return f"[^{plain}{''.join(map(re.escape, sorted(special)))}{_BAD}]"
    choices = [_SETS[name] for name in opposites] + ([f"[{plain}]"] if plain else [])
    choices += [re.escape(c) for c in sorted(special)] + [_literal(c) for c in sorted(escaped)]
    if not choices:
        raise _unsaid(text)
    return choices[0] if len(choices) == 1 else f"(?:{'|'.join(choices)})"


def _common_set(text: str, characters: str) -> str:
    r"""Return a set that excludes `\D`, `\S` or `\W`: what it has of some characters."""
    try:
        kept = [c for c in characters if re.fullmatch(text, c, re.ASCII)]
    except re.error:
        raise _unsaid(text) from None
    if not kept:
        raise _unsaid(text)
    return f"[{''.join(kept)}]"


def _members(members: list[str], *, blank: str) -> tuple[str, set[str], set[str]]:
    """Return the members of a set that can be written as they are, those that mean something in
    sets, and those that JSON escapes. Opposites are left out.

    blank  what blanks are
    """
    plain: list[str] = []
    special, escaped = set[str](), set[str]()
    at = 0
    while at < len(members):
        first = last = _character(members[at])
        if first is None or last is None:
            if members[at] not in _CLASSES:
                raise _unsaid(members[at])
            if members[at] not in _OPPOSITES:
                plain.append(blank if members[at] == r"\s" else members[at])
            at += 1
            continue
        if members[at + 1 : at + 2] == ["-"] and at + 2 < len(members):
            end = _character(members[at + 2])
            if end is not None:
                last, at = end, at + 2
        at += 1
        low, high = ord(first), ord(last)
        if low > high:
            raise _unsaid(f"{first}-{last}")
        special |= {c for c in _SPECIAL if low <= ord(c) <= high}
        escaped |= {c for c in _SPELT if low <= ord(c) <= high}
        if low == high < _SPACE:
            escaped.add(first)
        plain += _ranges(low, high)
    return "".join(plain), special, escaped


def _character(member: str) -> str | None:
    """Return the one character that a member of a set is; None for a class."""
    if len(member) == 1:
        return member
    if member == r"\b":
        return "\b"
    return _code(member) or (None if member[1].isalnum() else member[1])


def _ranges(low: int, high: int) -> list[str]:
    """Return a range of code points as ranges without what is special, or escaped in JSON."""
    found = [(max(low, a), min(high, b)) for a, b in _ORDINARY if max(low, a) <= min(high, b)]
    return [chr(a) if a == b else f"{chr(a)}-{chr(b)}" for a, b in found]
