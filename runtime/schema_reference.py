"""References inside a JSON schema, as forced calls and grammars follow them."""

from typing import Any, cast
from urllib.parse import unquote

# More references than that from one to the next are a circle.
MOST_STEPS = 32
_CHOICES = ("anyOf", "oneOf", "allOf")


def is_circle(schema: object, root: object) -> bool:
    """Whether a schema says of a value that it has to fit that schema itself, and so on.

    It does by references, and by choices that have one.
    """
    seen: set[int] = set()
    waiting = _of_same_value(schema, root)
    while waiting:
        part = waiting.pop()
        if part is schema:
            return True
        if id(part) not in seen:
            seen.add(id(part))
            waiting += _of_same_value(part, root)
    return False


def _of_same_value(schema: object, root: object) -> list[object]:
    """Return the schemas that a value has to fit, or may have to, for it to fit this one."""
    if not isinstance(schema, dict):
        return []
    rules = cast(dict[str, object], schema)
    parts = [referred(rules["$ref"], root)] if "$ref" in rules else []
    for name in _CHOICES:
        inner = rules.get(name)
        if isinstance(inner, list):
            parts += cast(list[object], inner)
    return parts


def referred(reference: object, root: object) -> object:
    """Return the schema that a reference inside the whole schema means, True if there is none."""
    found = _found(reference, root)
    return True if found is None else found


def is_missing(reference: object, root: object) -> bool:
    """Whether a reference leads out of the whole schema, or to nothing in it."""
    return not isinstance(_found(reference, root), bool | dict)


def _found(reference: object, root: object) -> object:
    """Return what a reference means, None if there is nothing."""
    text = str(reference)
    if text not in ("#", "") and not text.startswith("#/"):
        return None
    found = root
    for key in unquote(text.removeprefix("#")).split("/")[1:]:
        name = key.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            items = cast(list[object], found)
            found = items[int(name)] if name.isdecimal() and int(name) < len(items) else None
        else:
            found = cast(dict[str, Any], found).get(name) if isinstance(found, dict) else None
    return found
