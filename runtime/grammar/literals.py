"""Values that are named, as rules: what several of them begin or end with is written once."""

import itertools
from typing import Any, cast

from runtime.errors import GrammarError
from runtime.grammar.ebnf import EMPTY, Rules, either, literal, sequence
from runtime.grammar.patterns import escape

# Each character costs the compiler time.
_MOST_CHARACTERS = 1 << 17
# Values nested deeper are nobody's.
_MOST_DEPTH = 64


def string_spelling(text: str) -> str:
    """Return a string between its quotes as JSON spells it here.

    Raises GrammarError for half of a character, which UTF-8 cannot spell.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise GrammarError("a string has half of a character, which cannot be written") from None
    return "".join(escape(ord(character)) for character in text)


def named_values(rules: Rules, values: list[Any], blanks: str) -> str:
    """Return the expression of one of these values.

    blanks  what may stand between the parts of arrays and objects
    Raises GrammarError for values that are too many, or nested too deeply.
    """
    spellings: list[str] = []
    choices: list[str] = []
    for value in values:
        if isinstance(value, list | dict):
            choices.append(_nested(cast(list[Any] | dict[str, Any], value), blanks, 0))
        else:
            spellings.append(_scalar(value))
    if spellings:
        choices.append(one_of(rules, spellings))
    return either(choices)


def one_of(rules: Rules, texts: list[str]) -> str:
    """Return the expression of one of these texts. Raises GrammarError for too many."""
    tree = _Texts(rules)
    return tree.write(sorted(set(texts)))


class _Texts:
    """Writes texts as a tree by their beginnings; equal branches are one rule."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._written = 0

    def write(self, texts: list[str]) -> str:
        """Return the expression of one of these texts, which are sorted and all different."""
        if len(texts) == 1:
            return self._literal(texts[0])
        first = texts[0][: _same(texts[0], texts[-1])]
        turned = sorted(text[len(first) :][::-1] for text in texts)
        last = turned[0][: _same(turned[0], turned[-1])][::-1]
        rest = sorted(text[len(last) :][::-1] for text in turned)
        choices: list[str] = []
        for _, group in itertools.groupby(rest, key=lambda text: text[:1]):
            choices.append(self.write(list(group)))
        name = self._rules.add("one", either(choices))
        return sequence((self._literal(first), name, self._literal(last)))

    def _literal(self, text: str) -> str:
        self._written += len(text)
        if self._written > _MOST_CHARACTERS:
            raise GrammarError(
                f"the values have more than {_MOST_CHARACTERS} characters that differ: "
                "name fewer or shorter ones"
            )
        return literal(text) if text else EMPTY


def _same(a: str, b: str) -> int:
    """Return with how many equal characters two texts begin."""
    return next(
        (k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def _scalar(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{string_spelling(value)}"'
        case int():
            return str(value)
        case _:
            return repr(value)


def _nested(value: Any, blanks: str, depth: int) -> str:
    """Return the expression of an array or an object with blanks between its parts."""
    if depth > _MOST_DEPTH:
        raise GrammarError(f"the values are nested more than {_MOST_DEPTH} deep")
    if isinstance(value, list):
        items = [_nested(item, blanks, depth + 1) for item in cast(list[Any], value)]
        return _listed("[", items, "]", blanks)
    if isinstance(value, dict):
        named = cast(dict[str, Any], value)
        pairs = [
            f"{literal(_scalar(key))} {blanks} {literal(':')} {blanks} "
            f"{_nested(item, blanks, depth + 1)}"
            for key, item in named.items()
        ]
        return _listed("{", pairs, "}", blanks)
    return literal(_scalar(value))


def _listed(begin: str, items: list[str], end: str, blanks: str) -> str:
    inner = f" {blanks} {literal(',')} {blanks} ".join(items)
    parts = [literal(begin), blanks, inner, blanks] if items else [literal(begin), blanks]
    return " ".join((*parts, literal(end)))
