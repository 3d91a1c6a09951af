"""The parameters of one tool: the schema of each argument, as far as the tool's schema says it."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from runtime.chat.call_arguments import arguments
from runtime.chat.schema_check import UNIONS, property_schema, schemas
from runtime.errors import GrammarError
from runtime.schema_reference import referred


class ToolParameters:
    """Schemas by the names of arguments.

    root   the schema of all arguments, where references lead
    named  those that have a schema
    """

    def __init__(self, root: Any) -> None:
        """`root` is None for a tool that says nothing of its arguments."""
        self.root = root
        self._required: frozenset[str] = frozenset()
        try:
            # As a forced call is held to it.
            self.named, self._required, _ = arguments(root)
        except GrammarError:
            self.named = _collected(root)
        rules = cast(dict[str, Any], root) if isinstance(root, dict) else {}
        others = property_schema({**rules, "properties": {}}, "")
        self._others: Any = True if others is False else others

    def schema(self, name: str) -> Any:
        """Return the schema of an argument, True where nothing is said of it."""
        return self.named.get(name, self._others)

    @property
    def only(self) -> str | None:
        """The argument that a value without a name is meant for, None where there are several."""
        names = list(self.named) if len(self.named) == 1 else list(self._required)
        return names[0] if len(names) == 1 else None


def _collected(root: Any) -> Mapping[str, Any]:
    """Return the schema of each property that some part of a schema has."""
    found: dict[str, list[Any]] = {}
    for rules in _parts(root):
        properties = rules.get("properties")
        if isinstance(properties, dict):
            for name, schema in cast(dict[str, Any], properties).items():
                found.setdefault(name, []).append(schema)
    return {name: some[0] if len(some) == 1 else {"anyOf": some} for name, some in found.items()}


def _parts(root: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and those that it is made of, each once: it may refer to itself."""
    waiting, seen = [root], set[int]()
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict) and id(cast(object, part)) not in seen:
            rules = cast(dict[str, Any], part)
            seen.add(id(rules))
            yield rules
            for union in ("allOf", *UNIONS):
                waiting += schemas(rules.get(union))
            waiting += [rules[branch] for branch in ("then", "else") if branch in rules]
            if isinstance(rules.get("$ref"), str):
                waiting.append(referred(rules["$ref"], root))
