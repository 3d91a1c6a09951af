"""Patterns are read as they are meant, or refused by what cannot be read."""

import re

import pytest

from runtime.errors import GrammarError
from runtime.grammar.regex_parser import parse
from runtime.grammar.regex_tree import Characters, Repeat, Sequence


def characters(text: str) -> Characters:
    return Characters(tuple((ord(c), ord(c)) for c in text))


def test_parts_of_a_pattern() -> None:
    assert parse("^ab$", spelt=False) == Sequence((characters("a"), characters("b")))
    assert parse("(?:a){2,}?", spelt=False) == Repeat(characters("a"), 2, None)
    assert parse("(?<name>a)", spelt=False) == parse("(?P<name>a)", spelt=False) == characters("a")
    assert parse("^^a$$|^b$", spelt=False) == Characters(((0x61, 0x62),))
    assert parse(r"a{x", spelt=False) == parse(r"a\{x", spelt=False)
    assert parse("x[^]*", spelt=False) == parse(r"x[\s\S]*", spelt=False)
    assert parse("]}", spelt=False) == parse(r"\]\}", spelt=False)


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        *(("(", "parenthesis"), ("a)", "')'"), ("(?>a)", "atomic group"), ("(?#a)", "'(?#a'")),
        *(
            ("a**", "count of a count"),
            ("+a", "'+'"),
            ("{2}", "'{'"),
            ("a{9999999999}", "{9999999999}"),
        ),
        *(("(^a)", "'^'"), ("a$b", "'$'"), (r"\b", r"\\b"), (r"\k<n>", r"\\k"), (r"\07", "octal")),
        *(("[[:alpha:]]", "POSIX class [:alpha:]"), ("[b-a]", "b-a"), (r"\ud83d\ude00", "half")),
        *(("[]a]", "two readings"), ("[^]a]", "two readings"), ("[^a][^][a]", "'[^]'")),
        (r"\_", "an escape"),
    ],
)
def test_what_cannot_be_read_is_named(pattern: str, part: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(part)):
        parse(pattern, spelt=False)


def test_groups_may_not_be_nested_without_end() -> None:
    with pytest.raises(GrammarError, match="100 groups inside each other"):
        parse("(" * 5000 + "a" + ")" * 5000, spelt=False)


@pytest.mark.parametrize("pattern", [".", r"\S", r"\D", r"\W", "[^a]", r"[\s\S]"])
def test_in_json_what_nobody_lists_goes_without_what_is_escaped(pattern: str) -> None:
    def has(character: str, *, spelt: bool) -> bool:
        node = parse(pattern, spelt=spelt)
        assert isinstance(node, Characters)
        return any(low <= ord(character) <= high for low, high in node.ranges)

    assert [has(c, spelt=False) for c in '"\\'] == [True, True]
    assert [has(c, spelt=True) for c in '"\\\n#'] == [False, False, False, True]


def test_in_json_what_is_listed_stays() -> None:
    assert parse(r'["\n]', spelt=True) == Characters(((0x0A, 0x0A), (0x22, 0x22)))
    assert parse("[ -~]", spelt=True) == Characters(((0x20, 0x7E),))
