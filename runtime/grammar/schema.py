"""JSON Schema that a grammar can hold an output to, and what of it none can.

A keyword that would be dropped in silence makes outputs that do not validate: such a schema is
refused, or said in another way. Runs in the grammar's process, where a schema of any depth harms
nobody else.
"""

from collections.abc import Iterator
from typing import Any, cast

from runtime.errors import GrammarError
from runtime.grammar.choices import BOUNDS, CHOICES, check_choice, implied_types, is_bare, say_any
from runtime.grammar.formats import FORMATS, REFUSED_FORMATS
from runtime.grammar.objects import prepare_keys
from runtime.grammar.patterns import AS_RULES, json_pattern, text_pattern
from runtime.grammar.values import keep_named, said_types
from runtime.schema_reference import is_circle, referred

# Source: measured, the compiler takes them without a word and enforces nothing.
_NOT_ENFORCED = (
    "$dynamicRef", "$recursiveRef", "contains", "dependencies", "dependentRequired",
    "dependentSchemas", "else", "if", "not", "maxContains", "minContains", "then",
    "unevaluatedItems",
)  # fmt: skip
_SCHEMAS = (
    "additionalProperties", "items", "propertyNames", "additionalItems", "unevaluatedProperties",
)  # fmt: skip
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPPINGS = ("properties", "patternProperties", "$defs", "definitions")
_COUNTS = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
)  # fmt: skip
# Parts of a structural tag that hold a schema.
_SCHEMA_FORMATS = ("json_schema", "qwen_xml_parameter")
_MOST = 1 << 31
_MOST_INTEGER = 1 << 63
_MOST_NUMBER = 10**308


def prepare_schema(schema: object) -> None:
    """Rewrite a decoded schema, in place, so that the compiler holds outputs to all of it.

    Raises GrammarError for the first keyword that it would not enforce.
    """
    for rules in _parts(schema):
        if is_circle(rules, schema):
            raise GrammarError(f"the reference {rules['$ref']!r} leads to itself alone")
        check_choice(rules, schema)
        say_any(rules, schema)
    shared: dict[str, Any] = {}
    for rules in _parts(schema):
        for name in _NOT_ENFORCED:
            if name in rules:
                raise GrammarError(f"the schema keyword {name!r} cannot be enforced")
        if rules.get("uniqueItems"):
            raise GrammarError("the schema keyword 'uniqueItems' cannot be enforced")
        keep_named(rules)
        prepare_keys(rules)
        _say_type(rules)
        _check_numbers(rules)
        _say_patterns(rules)
        _bound_by_pattern(rules)
        _format_by_pattern(rules, shared)
    if shared and isinstance(schema, dict):
        cast(dict[str, Any], schema).setdefault("$defs", {}).update(shared)


def prepare_tag(tag: object) -> None:
    """Prepare every schema in a decoded structural tag. Raises GrammarError."""
    waiting = [tag]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting.extend(cast(list[object], part))
        elif isinstance(part, dict):
            inner = cast(dict[str, Any], part)
            if inner.get("type") in _SCHEMA_FORMATS:
                prepare_schema(inner.get("json_schema"))
            else:
                if inner.get("type") == "regex" and isinstance(inner.get("pattern"), str):
                    inner["pattern"] = text_pattern(inner["pattern"])
                waiting.extend(inner.values())


def _say_type(rules: dict[str, Any]) -> None:
    """Name the types that keywords speak of where no type is named; a stricter schema.

    Without a type the compiler drops them in silence.
    """
    choice = next((name for name in CHOICES if name in rules), None)
    if choice is not None:
        if "type" in rules and isinstance(rules[choice], list):
            for part in cast(list[dict[str, Any]], rules[choice]):
                if is_bare(part):
                    part["type"] = rules["type"]
    elif not rules.keys() & {"enum", "const", "type"} and (types := implied_types(rules)):
        rules["type"] = types[0] if len(types) == 1 else types


def _check_numbers(rules: dict[str, Any]) -> None:
    """Refuse, by name, numbers that the compiler cannot hold; it fails on them without a word."""
    most = _MOST_INTEGER if "integer" in said_types(rules) else _MOST_NUMBER
    for name in BOUNDS:
        value = rules.get(name)
        if isinstance(value, int | float) and not -most < value < most:
            least = "2^63" if most == _MOST_INTEGER else "10^308"
            raise GrammarError(f"the schema keyword {name!r} must be below {least} in size")
    for name in _COUNTS:
        value = rules.get(name)
        if isinstance(value, float) and value.is_integer():
            rules[name] = value = int(value)
        if isinstance(value, int | float) and not (isinstance(value, int) and 0 <= value < _MOST):
            raise GrammarError(f"the schema keyword {name!r} must be an integer from 0 to 2^31 - 1")


def _say_patterns(rules: dict[str, Any]) -> None:
    if isinstance(rules.get("pattern"), str):
        rules["pattern"] = json_pattern(rules["pattern"])
    named = rules.get("patternProperties")
    if isinstance(named, dict):
        mapping = cast(dict[str, Any], named)
        rules["patternProperties"] = {json_pattern(p): rule for p, rule in mapping.items()}


def _bound_by_pattern(rules: dict[str, Any]) -> None:
    """Say bounds of a string's length as a pattern.

    Source: measured, a string with bounds may hold control characters, which JSON forbids; one
    with a pattern may not.
    """
    bounds = rules.keys() & {"minLength", "maxLength"}
    if not bounds or rules.keys() & {"pattern", "format", "enum", "const"}:
        return
    least, most = rules.get("minLength", 0), rules.get("maxLength")
    if not all(isinstance(bound, int) for bound in (least, 0 if most is None else most)):
        return  # for the compiler to refuse
    if 0 <= least <= (least if most is None else most):
        for name in bounds:
            del rules[name]
        rules["pattern"] = rf"^[\s\S]{{{least},{'' if most is None else most}}}$"


def _format_by_pattern(rules: dict[str, Any], shared: dict[str, Any]) -> None:
    """Say a string's format as a pattern, made once for the whole schema.

    shared  schemas that belong into the `$defs` of the root, by name
    """
    name = rules.get("format")
    if not isinstance(name, str) or rules.keys() & {"enum", "const"}:
        return
    if "string" not in said_types(rules):
        return
    if name in REFUSED_FORMATS:
        raise GrammarError(f"the format {name!r} cannot be enforced")
    form = FORMATS.get(name)
    if form is None:
        return
    if "pattern" in rules:
        raise GrammarError("the schema keywords 'pattern' and 'format' cannot be enforced together")
    least, most = rules.pop("minLength", 0), rules.pop("maxLength", None)
    if least > form.least or (most is not None and (form.most is None or most < form.most)):
        raise GrammarError(f"bounds of length cannot be enforced beside the format {name!r}")
    del rules["format"]
    rules["pattern"] = f"^{AS_RULES}({form.pattern})$"
    if rules["type"] == "string":
        # Compiling some of them takes a second: each once, however many strings have them.
        key = f"format {name}"
        shared[key] = {"type": "string", "pattern": rules["pattern"]}
        kept = rules.get("$defs"), rules.get("definitions")
        rules.clear()
        rules["$ref"] = f"#/$defs/{key}"
        for part, value in zip(("$defs", "definitions"), kept, strict=True):
            if value is not None:
                rules[part] = value


def _parts(schema: object) -> Iterator[dict[str, Any]]:
    """Yield a schema and those inside or referred to, each once; what is inside one, or referred
    to there, when the next is asked for.
    """
    waiting = [schema]
    seen: dict[int, object] = {}  # by id, kept: what is let go of gives its id away
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict) and id(cast(object, part)) not in seen:
            rules = cast(dict[str, Any], part)
            seen[id(rules)] = rules
            yield rules
            waiting.extend(_inner(rules))
            reference = rules.get("$ref")
            if isinstance(reference, str) and reference.startswith("#"):
                waiting.append(referred(reference, schema))


def _inner(rules: dict[str, Any]) -> Iterator[object]:
    for name in _SCHEMAS:
        yield rules.get(name)
    for name in _LISTS:
        if isinstance(rules.get(name), list):
            yield from rules[name]
    for name in _MAPPINGS:
        if isinstance(rules.get(name), dict):
            yield from rules[name].values()
