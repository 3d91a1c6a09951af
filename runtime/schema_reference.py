"""References inside a JSON schema, as forced calls and grammars follow them."""

from typing import Any, cast

# More references than that from one to the next are a circle.
MOST_STEPS = 32


def referred(reference: object, root: object) -> object:
    """Return the schema that a reference inside the whole schema means, True if there is none."""
    found = root
    for key in str(reference).removeprefix("#").split("/")[1:]:
        if not isinstance(found, dict) or key not in found:
            return True
        found = cast(dict[str, Any], found)[key]
    return found
