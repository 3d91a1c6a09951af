"""Checked access to the fields of a JSON object, for configuration files.

Types are strict: `true` is no integer and `1` is no boolean. `where` is the path of the object
inside its file, ending in a dot; it only appears in messages.
"""

import json
from collections.abc import Collection
from typing import Any, cast

from layers.fault_text import bounded

LARGEST = 1e300  # keeps integers that no float holds, infinities and NaN out
LARGEST_INT = 2**40


class ConfigFault(Exception):
    """A checkpoint configuration that cannot be read or is not run; one sentence says why."""

    def __init__(self, message: str) -> None:
        super().__init__(bounded(message))


def overridden(
    raw: dict[str, Any], override: dict[str, Any], *, known: Collection[str]
) -> dict[str, Any]:
    """Return `raw` with the entries of `override` in the place of its own.

    known  fields that `raw` may lack
    Raises ConfigFault for an entry that is no field.
    """
    for key in override:
        if key not in raw and key not in known:
            raise ConfigFault(f"override names {key!r}, which is no field of config.json")
    return raw | override


def present(raw: dict[str, Any], name: str, where: str = "") -> Any:
    """Return the field `name`. Raises ConfigFault when it is missing."""
    if name not in raw:
        raise ConfigFault(f"{where}{name} is missing")
    return raw[name]


def require(raw: dict[str, Any], name: str, allowed: tuple[object, ...], where: str = "") -> None:
    """Raise ConfigFault unless the field `name` is one of the values `allowed`."""
    value = present(raw, name, where)
    # `True == 1` in Python, and not in a configuration.
    if not any(type(value) is type(option) and value == option for option in allowed):
        shown = " or ".join(json.dumps(option) for option in allowed if option is not None)
        raise ConfigFault(f"{where}{name} must be {shown}, got {value!r}")


def int_from(raw: dict[str, Any], name: str, least: int, where: str = "") -> int:
    """Return the integer field `name`, at least `least`. Raises ConfigFault when it is another."""
    value = present(raw, name, where)
    if type(value) is not int or value < least:
        raise ConfigFault(f"{where}{name} must be an integer of at least {least}, got {value!r}")
    if value > LARGEST_INT:
        raise ConfigFault(f"{where}{name} must be an integer of at most {LARGEST_INT}")
    return value


def positive_int(raw: dict[str, Any], name: str, where: str = "") -> int:
    """Return the integer field `name`. Raises ConfigFault unless it is at least 1."""
    return int_from(raw, name, 1, where)


def positive_number(raw: dict[str, Any], name: str, where: str = "") -> float:
    """Return the number field `name`. Raises ConfigFault unless it is finite and above 0."""
    value = present(raw, name, where)
    if type(value) not in (int, float) or not 0 < value < LARGEST:
        raise ConfigFault(f"{where}{name} must be a positive number, got {value!r}")
    return float(value)


def json_object(value: object, name: str) -> dict[str, Any]:
    """Return `value` as an object. Raises ConfigFault, calling it `name`, when it is none."""
    if not isinstance(value, dict):
        raise ConfigFault(f"{name} must be a JSON object, got {value!r}")
    return cast(dict[str, Any], value)


def string_list(raw: dict[str, Any], name: str, allowed: tuple[str, ...] | None) -> list[str]:
    """Return the field `name`, a list of strings, each one of `allowed` unless that is None.

    Raises ConfigFault for anything else.
    """
    value: Any = present(raw, name)
    items = cast(list[Any], value) if isinstance(value, list) else [value]
    wanted = "strings" if allowed is None else " or ".join(allowed)
    for item in items:
        if not isinstance(item, str) or (allowed is not None and item not in allowed):
            raise ConfigFault(f"{name} must be a list of {wanted}, got {item!r}")
    if not isinstance(value, list):
        raise ConfigFault(f"{name} must be a list of {wanted}, got {value!r}")
    return cast(list[str], items)
