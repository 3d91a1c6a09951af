r"""Reads a pattern as ECMA-262 has it, where Python reads it alike, and names what it cannot read.

The whole text has to match, so that anchors around alternatives say nothing. In a pattern of JSON
strings the classes that nobody lists one by one, `.`, `\D`, `\S`, `\W` and sets that exclude, go
without what JSON escapes: quotes, backslashes and control characters.
"""

import re

from runtime.errors import GrammarError
from runtime.grammar.ebnf import Ranges, complement, merged
from runtime.grammar.regex_classes import ANY_BUT_LINE_ENDS, POSSIBLE, SURE, wide
from runtime.grammar.regex_tree import (
    Characters,
    Node,
    Repeat,
    Sequence,
    choice,
    facts,
    sequence,
    solid,
)

# Deeper groups, or larger counts, are no pattern that a person means.
_MOST_DEPTH = 100
_MOST_COUNT = (1 << 31) - 1
_POSIX = re.compile(r"\[([:.=])\^?[A-Za-z-]+\1\]")
_CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})")
_COUNT = re.compile(r"\{(\d+)(?:(,)(\d*))?\}", re.ASCII)
_NAMED_GROUP = re.compile(r"\?P?<[A-Za-z_]\w*>", re.ASCII)
_REFUSED_GROUPS = (
    ("?=", "a look-ahead"),
    ("?!", "a look-ahead"),
    ("?<=", "a look-behind"),
    ("?<!", "a look-behind"),
    ("?>", "an atomic group"),
)
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_SURROGATES = range(0xD800, 0xE000)
_EMPTY = Sequence(())


def parse(pattern: str, *, spelt: bool) -> Node:
    """Return the tree of a pattern.

    spelt  whether it is the pattern of a string in JSON
    Raises GrammarError that names the part which cannot be read.
    """
    return _Parser(pattern, spelt=spelt).whole()


class _Parser:
    def __init__(self, pattern: str, *, spelt: bool) -> None:
        self._text = pattern
        self._spelt = spelt
        self._at = 0
        self._depth = 0

    def whole(self) -> Node:
        """Return the tree of all of it."""
        node = self._choice()
        if self._at < len(self._text):
            raise self._refuse(")", "a bracket that closes none")
        return node

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _refuse(self, part: str, what: str) -> GrammarError:
        return GrammarError(f"the pattern has {part[:80]!r}, {what}, which is not supported")

    def _choice(self) -> Node:
        parts = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            parts.append(self._sequence())
        return choice(parts)

    def _sequence(self) -> Node:
        parts: list[Node] = []
        first = True
        while self._peek() not in ("", "|", ")"):
            if self._peek() == "^" and first and not self._depth:
                self._at += 1
                continue
            if self._peek() == "$" and not self._depth and self._is_end(self._at + 1):
                self._at += 1
                continue
            first = False
            parts.append(self._counted(self._atom()))
        return sequence(parts)

    def _is_end(self, at: int) -> bool:
        """Whether nothing but anchors follows in this alternative."""
        return self._text[at:].lstrip("$")[:1] in ("", "|")

    def _atom(self) -> Node:
        character = self._peek()
        match character:
            case "(":
                return self._group()
            case "[":
                return self._set()
            case ".":
                self._at += 1
                return Characters(wide(ANY_BUT_LINE_ENDS, spelt=self._spelt))
            case "\\":
                return self._escape()
            case "^" | "$":
                raise self._refuse(character, "an anchor amid the pattern")
            case "*" | "+" | "?":
                raise self._refuse(character, "a count of nothing")
            case _:
                if character == "{" and _COUNT.match(self._text, self._at):
                    raise self._refuse(character, "a count of nothing")
                self._at += 1
                return self._one(character)

    def _one(self, character: str) -> Node:
        if ord(character) in _SURROGATES:
            raise self._refuse(f"\\u{ord(character):04x}", "half of a character")
        return Characters(((ord(character), ord(character)),))

    def _group(self) -> Node:
        self._at += 1
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise GrammarError(f"the pattern has more than {_MOST_DEPTH} groups inside each other")
        if self._peek() == "?":
            self._open_group()
        node = self._choice()
        if self._peek() != ")":
            raise GrammarError("the pattern has a parenthesis that is not closed")
        self._at += 1
        self._depth -= 1
        return node

    def _open_group(self) -> None:
        """Pass what stands behind the bracket of a group. Raises GrammarError."""
        rest = self._text[self._at : self._at + 80]
        if rest.startswith("?:"):
            self._at += 2
            return
        for sign, what in _REFUSED_GROUPS:
            if rest.startswith(sign):
                raise self._refuse(f"({sign}", what)
        named = _NAMED_GROUP.match(rest)
        if named is None:
            raise self._refuse(f"({rest[:3]}", "a group of another kind")
        self._at += named.end()

    def _counted(self, node: Node) -> Node:
        """Return the node with the count that follows it."""
        sign = self._peek()
        counted = _COUNT.match(self._text, self._at) if sign == "{" else None
        if sign in ("*", "+", "?") and sign:
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
            self._at += 1
        elif counted is not None:
            least = int(counted[1])
            most = least if counted[2] is None else int(counted[3]) if counted[3] else None
            self._at = counted.end()
            if max(least, most or 0) > _MOST_COUNT:
                raise self._refuse(counted[0], f"a count above {_MOST_COUNT}")
            if most is not None and least > most:
                raise self._refuse(counted[0], "a count that is none")
        elif sign == "{" and self._text[self._at + 1 : self._at + 2] == ",":
            raise self._refuse("{,", "a count without its least")
        else:
            return node
        if self._peek() == "?":
            self._at += 1  # What is matched is the same.
        if self._peek() == "+":
            raise self._refuse("+", "a count that gives nothing back")
        if self._peek() in ("*", "?") and self._peek():
            raise self._refuse(self._peek(), "a count of a count")
        if _COUNT.match(self._text, self._at):
            raise self._refuse(self._peek(), "a count of a count")
        return _repeated(node, least, most)

    def _escape(self) -> Node:
        """Return the node of what a backslash begins."""
        name = self._text[self._at + 1 : self._at + 2]
        if name in SURE and name:
            self._at += 2
            if name.isupper():
                return Characters(wide(SURE[name], spelt=self._spelt))
            return Characters(self._blanks() if name == "s" else SURE[name])
        return self._one(self._escaped_character())

    def _blanks(self) -> Ranges:
        """Return what blanks are: in JSON, where others are escaped, the space."""
        return ((0x20, 0x20),) if self._spelt else SURE["s"]

    def _escaped_character(self, *, in_set: bool = False) -> str:
        """Return the character that an escape stands for."""
        start = self._at
        name = self._text[start + 1 : start + 2]
        code = _CODE.match(self._text, start + 1)
        if code is not None:
            self._at = code.end()
            return self._coded(int(code[1] or code[2], 16), code[0])
        self._at = start + 2
        if name == "0" and self._peek().isdecimal():
            raise self._refuse(rf"\0{self._peek()}", "an octal code")
        if name in _CONTROLS:
            return _CONTROLS[name]
        if in_set and name == "b":
            return "\b"
        if name and name in "123456789":
            raise self._refuse(f"\\{name}", "a backreference")
        if not name or name.isalnum() or name == "_":
            raise self._refuse(f"\\{name}", "an escape")
        return name

    def _coded(self, code: int, text: str) -> str:
        """Return the character of a code."""
        if code in _SURROGATES:
            # A pair of halves is one character to some engines, and none to others.
            raise self._refuse(f"\\{text}", "half of a character")
        return chr(code)

    def _set(self) -> Node:
        """Return the node of a set in square brackets."""
        start = self._at
        self._at += 1
        excludes = self._peek() == "^"
        self._at += excludes
        if self._peek() == "]" and "]" in self._text[self._at + 1 :]:
            # To Python the first bracket is a member, and the second one ends the set.
            raise self._refuse(self._text[start : self._at + 1], "a set that has two readings")
        members = _Members()
        while self._peek() != "]":
            self._member(members, start)
        self._at += 1
        ranges = members.excluded() if excludes else members.included(self._blanks())
        if excludes or members.everything:
            ranges = wide(ranges, spelt=self._spelt)
        if not ranges:
            raise self._refuse(self._text[start : self._at], "a set of nothing")
        return Characters(ranges)

    def _member(self, members: "_Members", start: int) -> None:
        """Add a class, a character or a range to the members of a set that began at `start`."""
        if self._text.find("]", self._at) < 0:
            raise self._refuse(self._text[start : start + 20], "a set that is not closed")
        posix = _POSIX.match(self._text, self._at)
        if posix is not None:
            raise GrammarError(
                f"the pattern has the POSIX class {posix[0]}, which is not supported: "
                "write its characters, such as [A-Za-z]"
            )
        name = self._class_at(self._at)
        if name:
            self._at += 2
            opposite = wide(SURE[name], spelt=self._spelt) if name.isupper() else SURE[name]
            members.add_class(name, opposite)
            return
        first = last = self._set_character()
        ends = self._text[self._at + 1 : self._at + 2] in ("", "]")
        # Before a class, or at the end, a hyphen stands for itself.
        if self._peek() == "-" and not ends and not self._class_at(self._at + 1):
            self._at += 1
            last = self._set_character()
        if first > last:
            raise self._refuse(f"{first}-{last}", "a range of nothing")
        members.add_range(ord(first), ord(last))

    def _class_at(self, at: int) -> str:
        """Return the letter of the class that stands there, nothing if none does."""
        name = self._text[at + 1 : at + 2]
        return name if self._text[at : at + 1] == "\\" and name in SURE else ""

    def _set_character(self) -> str:
        character = self._peek()
        if character == "\\":
            return self._escaped_character(in_set=True)
        self._at += 1
        return character


class _Members:
    """Members of a set: what it has for certain, and what it may have."""

    def __init__(self) -> None:
        self._sure: list[tuple[int, int]] = []
        self._possible: list[tuple[int, int]] = []
        self._classes: set[str] = set()

    @property
    def everything(self) -> bool:
        """Whether it has a class and the opposite of it."""
        return any(name.swapcase() in self._classes for name in self._classes)

    def add_class(self, name: str, ranges: Ranges) -> None:
        self._classes.add(name)
        self._possible += POSSIBLE[name]
        if name != "s":
            self._sure += ranges

    def add_range(self, first: int, last: int) -> None:
        self._sure.append((first, last))
        self._possible.append((first, last))

    def included(self, blanks: Ranges) -> Ranges:
        """Return what it has; `blanks` is what the class of blanks has."""
        if self.everything:
            return complement(())
        return merged((*self._sure, *(blanks if "s" in self._classes else ())))

    def excluded(self) -> Ranges:
        """Return what it cannot have."""
        return complement(self._possible)


def _repeated(node: Node, least: int, most: int | None) -> Node:
    """Return a node so many times, in the form with the fewest readings."""
    shape = facts(node)
    if most == 0 or not shape.longest:
        return _EMPTY
    if not shape.shortest:
        node, least = solid(node), 0
    if isinstance(node, Repeat) and node.most is None and node.least <= 1:
        return Repeat(node.part, least, None)
    return node if least == most == 1 else Repeat(node, least, most)
