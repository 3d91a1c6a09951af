"""Values of a call's arguments: of what the model wrote, the reading that the schema allows.

A parameter's text has two readings: the text itself as a string, and the JSON that it spells. The
model's `string=` attribute prefers one of them. If the schema does not allow that reading, the
other one is taken where the schema allows it: 12345 of type string becomes "12345", and "12345" of
type integer becomes 12345. Python's True, False and None count as JSON where only JSON's word for
them fits. Members of arrays and objects have the same two readings; a nested value is changed only
if the whole argument fits the schema then, and a union's branches must agree on the change. A value
that no reading makes fit is kept as the model wrote it.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, cast

import msgspec

from runtime.chat.schema_check import (
    UNIONS,
    SchemaCheck,
    Undecided,
    has_type,
    item_schema,
    property_schema,
    schemas,
    types,
)
from runtime.schema_reference import MOST_STEPS, referred

_INTEGER_AS_FLOAT = re.compile(r"(-?\d+)\.0+")
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
# Keywords by which a string may be ruled out although its type is allowed.
_ENUMERATED = {"enum", "const", "allOf", "not", "if"}
_LENGTHS = {"minLength", "maxLength"}


def argument_json(text: str, schema: Any, *, root: Any, is_text: bool) -> str:
    """Return a parameter's value as JSON.

    root     the whole schema, where references lead
    is_text  the model says that the text itself is the value
    """
    json_text = quoted(text) if is_text or not is_json(text) else text.strip()
    if is_text and is_certain_text(schema, root):
        return json_text
    return fitted(json_text, schema, root=root) or json_text


def fitted(json_text: str, schema: Any, *, root: Any) -> str | None:
    """Return the reading of a JSON value that a schema allows; None if there is none."""
    try:
        return _Readings(root).fitted(json_text, schema)
    except (Undecided, RecursionError):
        return None


def is_certain_text(schema: Any, root: Any) -> bool:
    """Return whether a text that is marked as a string can only be read as that string.

    Such a text can be passed on before its end is known.
    """
    for _ in range(MOST_STEPS):
        if not isinstance(schema, dict):
            return True
        rules = cast(dict[str, Any], schema)
        if rules.keys() & _ENUMERATED:
            return False
        if "$ref" in rules:
            schema = referred(rules["$ref"], root)
            continue
        return _takes_text(rules)
    return False


def _takes_text(rules: dict[str, Any]) -> bool:
    """Return `is_certain_text` of a schema without a reference of its own."""
    named = types(rules)
    if named is not None and set(named) == {"string"}:
        return not rules.keys() & set(UNIONS)
    if rules.keys() & _LENGTHS or (named is not None and "string" not in named):
        return False
    unions = [schemas(rules[union]) for union in UNIONS if union in rules]
    return all(any(_takes_any_string(branch) for branch in union) for union in unions)


def _takes_any_string(branch: Any) -> bool:
    """Return whether a branch of a union is a plain string of any length."""
    if not isinstance(branch, dict):
        return branch is True
    rules = cast(dict[str, Any], branch)
    named = types(rules)
    ruled = rules.keys() & {*_ENUMERATED, *_LENGTHS, *UNIONS, "$ref"}
    return not ruled and (named is None or "string" in named)


class _Readings:
    """Reads values as one whole schema, or a part of it, allows them."""

    def __init__(self, root: Any) -> None:
        self._check = SchemaCheck(root)

    def fitted(self, text: str, schema: Any) -> str | None:
        """Return the reading of a JSON text that `schema` allows. Raises Undecided."""
        self._check.spend(len(text))
        value = _decoded(text)
        if self._check.allows(value, schema):
            return self._spelled(text, value, schema)
        if not isinstance(schema, dict):
            return None
        for reading in self._others(text, value, cast(dict[str, Any], schema)):
            if self._check.allows(_decoded(reading), schema):
                return reading
        return None

    def _others(self, text: str, value: Any, rules: dict[str, Any]) -> Iterator[str]:
        """Yield readings of a value that its schema does not allow as it is."""
        if has_type(value, rules):
            yield from self._with_fitted_members(text, value, rules)
        for kind in (self._check.conjuncts(rules), *(schemas(rules.get(u)) for u in UNIONS)):
            found = {self.fitted(text, part) for part in kind} - {None}
            if len(found) == 1:
                yield cast(str, found.pop())
        if not isinstance(value, str):
            yield quoted(text)
        elif is_json(value):
            read = self.fitted(value.strip(), rules)
            if read is not None:
                yield read
        elif value.strip() in _PYTHON_WORDS:
            yield _PYTHON_WORDS[value.strip()]

    def _with_fitted_members(self, text: str, value: Any, rules: dict[str, Any]) -> Iterator[str]:
        """Yield an array or object whose members fit their own schemas."""
        if isinstance(value, list):
            parts = _raw_items(text)
            read = [self._member(part, item_schema(rules, k)) for k, part in enumerate(parts)]
            yield "[" + ", ".join(read) + "]"
        elif isinstance(value, dict):
            yield written_object(
                (name, self._member(part, property_schema(rules, name)))
                for name, part in raw_members(text).items()
            )

    def _member(self, text: str, schema: Any) -> str:
        return self.fitted(text, schema) or text

    def _spelled(self, text: str, value: Any, schema: Any) -> str:
        """Spell 5.0 as 5 where only integers are allowed: typed clients read no other spelling."""
        whole = _INTEGER_AS_FLOAT.fullmatch(text) if isinstance(value, float) else None
        if whole is None or self._check.allows(value + 0.5, schema):
            return text
        return whole[1]


def is_json(text: str) -> bool:
    """Return whether a text is JSON that every client can decode."""
    try:
        _decoded(text)
    # Numbers beyond a double, or nested too deeply, would fail in the client as well.
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def raw_members(text: str) -> dict[str, str]:
    """Return the members of a JSON object, each as it is spelled."""
    members = msgspec.json.decode(text.encode(), type=dict[str, msgspec.Raw])
    return {name: bytes(member).decode() for name, member in members.items()}


def written_object(members: Iterable[tuple[str, str]]) -> str:
    """Return a JSON object of members that are JSON already."""
    return "{" + ", ".join(f"{quoted(name)}: {value}" for name, value in members) + "}"


def quoted(text: str) -> str:
    """Return a text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def _raw_items(text: str) -> list[str]:
    items = msgspec.json.decode(text.encode(), type=list[msgspec.Raw])
    return [bytes(item).decode() for item in items]


def _decoded(text: str) -> Any:
    return msgspec.json.decode(text.encode())
