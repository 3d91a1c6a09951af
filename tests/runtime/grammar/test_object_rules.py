"""Objects: named properties in their order, others behind them, and no more or fewer than said."""

import itertools
import re

import pytest

from runtime.errors import GrammarError
from runtime.grammar.ebnf import Rules
from runtime.grammar.json_rules import JsonRules
from runtime.grammar.object_rules import Counts, Property, object_rule
from tests.runtime.grammar.matching import compiled_rules, takes

NAMES = "abcd"


def taken(required: str, counts: Counts, *, named: str = NAMES, others: bool = False) -> set[str]:
    """Return which of all sequences of properties are taken; `x` is another one."""
    rules = Rules()
    json = JsonRules(rules)
    pairs = [Property(f'"\\"{name}\\"" {json.colon} "1"', name in required) for name in named]
    more = [f'"\\"x\\"" {json.colon} "1"'] if others else []
    grammar = compiled_rules(rules, object_rule(rules, json, pairs, more, counts))
    alphabet = named + "x"
    texts = ("".join(some) for n in range(6) for some in itertools.product(alphabet, repeat=n))
    spelt = {text: "{" + ",".join(f'"{name}":1' for name in text) + "}" for text in texts}
    return {text for text, object_ in spelt.items() if takes(grammar, object_)}


@pytest.mark.parametrize("required", ["", "a", "d", "bc", "abcd"])
@pytest.mark.parametrize(
    "counts", [Counts(0, None), Counts(2, None), Counts(0, 2), Counts(1, 3), Counts(0, 4)]
)
def test_named_properties_come_in_their_order(required: str, counts: Counts) -> None:
    most = len(NAMES) if counts.most is None else counts.most
    wanted = {
        "".join(some)
        for n in range(counts.least, most + 1)
        for some in itertools.combinations(NAMES, n)
        if set(required) <= set(some)
    }

    if wanted:
        assert taken(required, counts) == wanted
    else:
        with pytest.raises(GrammarError, match="no object fits"):
            taken(required, counts)


@pytest.mark.parametrize("required", ["", "b", "ab"])
@pytest.mark.parametrize(
    "counts", [Counts(0, None), Counts(0, 3), Counts(2, 3), Counts(3, None), Counts(0, 0)]
)
def test_others_come_behind_them(required: str, counts: Counts) -> None:
    most = 5 if counts.most is None else counts.most
    wanted = {
        text
        for n in range(3)
        for some in itertools.combinations("ab", n)
        for more in range(6)
        for text in ["".join(some) + "x" * more]
        if set(required) <= set(some) and counts.least <= len(text) <= min(5, most)
    }

    if wanted:
        assert taken(required, counts, named="ab", others=True) == wanted
    else:
        with pytest.raises(GrammarError, match="no object fits"):
            taken(required, counts, named="ab", others=True)


def test_many_properties_that_have_to_be_counted_are_refused() -> None:
    rules = Rules()
    pairs = [Property('"1"', required=False)] * 400
    reason = re.escape(
        "'minProperties' and 'maxProperties' cannot be enforced beside 400 properties"
    )

    with pytest.raises(GrammarError, match=reason):
        object_rule(rules, JsonRules(rules), pairs, [], Counts(0, 200))
    assert object_rule(rules, JsonRules(rules), pairs, [], Counts(0, 400))
