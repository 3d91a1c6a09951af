"""References inside a JSON schema, as forced calls and grammars follow them."""

from typing import Any, cast

# More references than that from one to the next are a circle.
MOST_STEPS = 32


def is_circle(schema: object, root: object) -> bool:
    """Whether a schema is a reference that leads to references alone, and so says nothing."""
    for _ in range(MOST_STEPS):
        reference = cast(dict[str, Any], schema).get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#"):
            return False
        schema = referred(reference, root)
    return True


def referred(reference: object, root: object) -> object:
    """Return the schema that a reference inside the whole schema means, True if there is none."""
    found = root
    for key in str(reference).removeprefix("#").split("/")[1:]:
        if not isinstance(found, dict) or key not in found:
            return True
        found = cast(dict[str, Any], found)[key]
    return found
