"""Judges the grammars of random JSON schemas by a validator.

A schema is refused by name, or every output that its grammar lets through parses and validates,
values that fit are let through, and values close by that do not fit are not.

    python -m tests.runtime.grammar.judge --count 10000 --seed 1
"""

import argparse
import contextlib
import json
import os
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import jsonschema
from xgrammar import CompiledGrammar, GrammarMatcher

from runtime.default_model.folder import default_model_folder
from runtime.errors import GrammarError
from runtime.grammar.choices import implied_types
from runtime.grammar.process import compile_grammar
from runtime.messages import Grammar
from tests.runtime.grammar.instances import Instances, NoInstance
from tests.runtime.grammar.random_outputs import Stuck, Writer
from tests.runtime.grammar.random_schemas import RandomSchemas

VOCAB_SIZE, END = 2048, 1
OUTPUTS, VALUES = 3, 6
# A judgement that takes longer has hung.
_LIMIT_S = 120
# A validator that reads a pattern in ever more ways needs as long as it is let.
_VALIDATOR_LIMIT_S = 3
# A refusal begins with the path of a part of the schema.
_NAMED = re.compile(r"#(/|:)")


class TooSlow(Exception):
    """The validator takes too long to tell."""


class Judge:
    """Judges schemas with the default model's tokens."""

    def __init__(self) -> None:
        self._writer = Writer(default_model_folder(), VOCAB_SIZE, END)

    def judge(self, seed: int) -> str:
        """Return "right", or "refused: " and the reason. Raises AssertionError."""
        schema = RandomSchemas(random.Random(seed)).schema()
        jsonschema.Draft202012Validator.check_schema(schema)
        try:
            grammar = Grammar("json_schema", json.dumps(schema))
            compiled = compile_grammar(self._writer.compiler, grammar)
        except GrammarError as fault:
            if _NAMED.match(fault.message):
                return f"refused: {fault.message}"
            raise AssertionError(f"a refusal without a path: {fault.message}") from None
        validator = jsonschema.Draft202012Validator(schema)
        pick = random.Random(seed)
        for _ in range(OUTPUTS):
            self._judge_output(compiled, validator, pick)
        instances = Instances(schema, pick)
        sure = None
        if not _is_narrowed(schema):
            sure = jsonschema.Draft202012Validator(closed(schema))
        for _ in range(VALUES):
            _judge_values(compiled, validator, instances, pick, sure)
        return "right"

    def _judge_output(self, compiled: CompiledGrammar, validator: Any, pick: random.Random) -> None:
        try:
            text = self._writer.write(compiled, pick)
        except Stuck as fault:
            raise AssertionError(f"an output without an end: {fault}") from None
        if text is None:
            return
        try:
            with validator_limit():
                fault = next(validator.iter_errors(_parsed(text)), None)
        except (RecursionError, TooSlow):
            return  # A thousand brackets inside each other, which Python does not read.
        assert fault is None, f"an output is no instance: {text[:300]!r} {str(fault)[:300]}"


@contextlib.contextmanager
def validator_limit(seconds: float = _VALIDATOR_LIMIT_S) -> Iterator[None]:
    """Raise TooSlow inside the block after so many seconds of work; Python's `re` lets it."""

    def end(*_: object) -> None:
        raise TooSlow

    signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_json)
    except ValueError as fault:
        raise AssertionError(f"an output is no JSON: {fault} {text[:300]!r}") from None


def _no_json(text: str) -> None:
    raise ValueError(text)


def _judge_values(
    compiled: CompiledGrammar,
    validator: Any,
    instances: Instances,
    pick: random.Random,
    sure: Any,
) -> None:
    """Judge a value that fits and one close by, where there are such.

    sure  the validator of what the grammar has to let through, if there is one
    """
    try:
        value = instances.make()
    except NoInstance:
        return
    for each in (value, instances.near(value)):
        separators = pick.choice([(",", ":"), (", ", ": ")])
        text = json.dumps(each, ensure_ascii=False, separators=separators)
        taken = _takes(compiled, text)
        try:
            with validator_limit():
                fits = validator.is_valid(each)
                due = sure is not None and each is value and sure.is_valid(each)
        except TooSlow:
            continue
        assert fits or not taken, f"what is no instance is let through: {text[:300]!r}"
        if due and not _is_left_out(text):
            assert taken, f"an instance is not let through: {text[:300]!r}"


def _is_narrowed(schema: Any) -> bool:
    """Whether a grammar narrows a schema: to a type that it does not name, but speaks of."""
    if isinstance(schema, list):
        return any(map(_is_narrowed, cast(list[Any], schema)))
    if not isinstance(schema, dict):
        return False
    rules = cast(dict[str, Any], schema)
    implied = "type" not in rules and bool(implied_types(rules))
    return implied or any(map(_is_narrowed, rules.values()))


def closed(schema: Any) -> Any:
    """Return a schema without other properties, and items, where it does not say what they are."""
    if isinstance(schema, list):
        return [closed(part) for part in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    rules = {
        name: part if name in ("enum", "const") else closed(part)
        for name, part in cast(dict[str, Any], schema).items()
    }
    if rules.keys() & {"properties", "patternProperties"} and "unevaluatedProperties" not in rules:
        rules.setdefault("additionalProperties", False)
    if "prefixItems" in rules:
        rules.setdefault("items", False)
    return rules


def _is_left_out(text: str) -> bool:
    """Whether a text has what grammars leave out on purpose: control characters that JSON has no
    short escape for, numbers with exponents, and zeros below zero.
    """
    return re.search(r"\\u00|\de[+-]?\d|-0\b(?!\.0*[1-9])", text) is not None


def _takes(compiled: CompiledGrammar, text: str) -> bool:
    matcher = GrammarMatcher(compiled)
    return matcher.accept_string(text) and matcher.accept_token(END)


def _in_a_process(judge: Judge, seed: int) -> str:
    """Return the verdict on a seed, found in a process of its own: it may crash, or hang."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(_LIMIT_S)
        try:
            verdict = judge.judge(seed)
        except Exception as fault:
            verdict = f"wrong: {type(fault).__name__} {fault}"
        os.write(theirs, verdict.encode(errors="replace")[:4000])
        os._exit(0)
    os.close(theirs)
    with open(ours, encoding="utf-8", errors="replace") as told:
        verdict = told.read()
    _, status = os.waitpid(child, 0)
    return verdict or f"wrong: the process ended with status {status}"


def main() -> int:
    """Judge many schemas; return how many grammars were wrong."""
    parser = argparse.ArgumentParser(description="Judge the grammars of random JSON schemas.")
    parser.add_argument("--count", type=int, default=1000, help="number of schemas")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first schema")
    arguments = parser.parse_args()
    judge, counts = Judge(), Counter[str]()
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        verdict = _in_a_process(judge, seed)
        counts[verdict.partition(":")[0]] += 1
        if verdict.startswith("wrong"):
            print(seed, verdict, flush=True)
    print(dict(counts))
    return counts["wrong"]


if __name__ == "__main__":
    sys.exit(min(main(), 1))
