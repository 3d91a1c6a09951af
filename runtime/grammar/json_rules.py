"""Rules of JSON that schemas share: blanks, strings and keys of any text, values of any kind."""

from collections.abc import Callable

from runtime.grammar.ebnf import EMPTY, Rules, characters, complement, literal, without
from runtime.grammar.literals import string_spelling
from runtime.grammar.numbers import any_number
from runtime.grammar.regex_classes import ESCAPED
from runtime.grammar.repetition import repeat

# Bounds runs of blanks between JSON's parts: a model that prefers them would write nothing else.
MAX_BLANKS = 32
_BLANK = r"[ \n\r\t]"
_PLAIN_RANGES = complement(ESCAPED)
_PLAIN = characters(_PLAIN_RANGES)
_HEX = "[0-9a-fA-F]"
# A code of four digits, or two for a character beyond U+FFFF: halves alone are no text.
_CODE = (
    f"([0-9a-cA-CefEF] {_HEX} {_HEX} {_HEX} | [dD] [0-7] {_HEX} {_HEX}"
    f' | [dD] [89abAB] {_HEX} {_HEX} "\\\\u" [dD] [c-fC-F] {_HEX} {_HEX})'
)
_SHORT_ESCAPE = r'["\\bfnrt]'
_ESCAPES = '"\\bfnrt'


class JsonRules:
    """Rules of JSON, each made when it is first asked for."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._made: dict[str, str] = {}

    @property
    def blanks(self) -> str:
        """What may stand between two parts."""
        return self._once("blanks", self._make_blanks)

    @property
    def comma(self) -> str:
        """A comma with blanks around it."""
        return f'{self.blanks} "," {self.blanks}'

    @property
    def colon(self) -> str:
        """A colon with blanks around it."""
        return f'{self.blanks} ":" {self.blanks}'

    @property
    def string(self) -> str:
        """A string of any text."""
        return self._once("string", self._make_string)

    @property
    def key(self) -> str:
        """A key of any text; each text has one spelling."""
        return self._once("key", self._make_key)

    @property
    def value(self) -> str:
        """A value of any kind."""
        return self._once("value", self._make_value)

    def other_key(self, names: list[str]) -> str:
        """Return the expression of a key that is none of these names."""
        if not names:
            return self.key
        spelt = sorted({tuple(_units(string_spelling(name))) for name in names})
        return f'"\\"" {self._others(spelt)}'

    def _once(self, name: str, make: Callable[[], str]) -> str:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def _make_blanks(self) -> str:
        return self._rules.add("blanks", repeat(self._rules, (_BLANK,), 0, MAX_BLANKS))

    def _make_string(self) -> str:
        escape = self._rules.add("escape", f'(["\\\\/bfnrt] | "u" {_CODE})')
        name = self._rules.reserve("text")
        self._rules.define(name, f'("\\"" | {_PLAIN} {name} | "\\\\" {escape} {name})')
        return self._rules.add("string", f'"\\"" {name}')

    def _rest_of_key(self) -> str:
        def make() -> str:
            name = self._rules.reserve("rest")
            body = f'("\\"" | {_PLAIN} {name} | "\\\\" {_SHORT_ESCAPE} {name})'
            self._rules.define(name, body)
            return name

        return self._once("rest", make)

    def _make_key(self) -> str:
        return self._rules.add("key", f'"\\"" {self._rest_of_key()}')

    def _make_value(self) -> str:
        name = self._rules.reserve("value")
        self._made["value"] = name
        pair = self._rules.add("pair", f"{self.key} {self.colon} {name}")
        choices = (
            self.string,
            any_number(self._rules),
            '"true"',
            '"false"',
            '"null"',
            f'"[" {self.blanks} ({self._list(name)} {self.blanks} "]" | "]")',
            f'"{{" {self.blanks} ({self._list(pair)} {self.blanks} "}}" | "}}")',
        )
        self._rules.define(name, f"({' | '.join(choices)})")
        return name

    def _list(self, part: str) -> str:
        """Return the expression of one or more of these with commas between."""
        more = self._rules.reserve("more")
        self._rules.define(more, f"({EMPTY} | {self.comma} {part} {more})")
        return f"{part} {more}"

    def _others(self, names: list[tuple[str, ...]]) -> str:
        """Return the rule of the rest of a key, its quote included, that is none of these.

        names  the rests that are excluded, sorted, as the units they are spelt with
        """
        groups: dict[str, list[tuple[str, ...]]] = {}
        for name in names:
            if name:
                groups.setdefault(name[0], []).append(name[1:])
        choices = [] if () in names else ['"\\""']
        choices += [f"{literal(unit)} {self._others(rest)}" for unit, rest in groups.items()]
        free = self._rest_of_key()
        listed = [(ord(unit), ord(unit)) for unit in groups if len(unit) == 1]
        choices.append(f"{characters(without(_PLAIN_RANGES, listed))} {free}")
        escapes = "".join(c for c in _ESCAPES if f"\\{c}" not in groups)
        if escapes:
            spelt = escapes.replace("\\", "\\\\")
            choices.append(f'"\\\\" [{spelt}] {free}')
        return self._rules.add("other", f"({' | '.join(choices)})")


def _units(spelling: str) -> list[str]:
    """Return what a string's spelling consists of: characters, and escapes of two characters.

    A control character without a short escape is in no other key: its spelling is one unit.
    """
    units: list[str] = []
    at = 0
    while at < len(spelling):
        size = 1
        if spelling[at] == "\\":
            size = 6 if spelling[at + 1] == "u" else 2
        units.append(spelling[at : at + size])
        at += size
    return units
