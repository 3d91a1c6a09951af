"""Checked access to the metadata of a GGUF file."""

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from runtime.errors import ConfigError

__all__ = ["Metadata"]

T = TypeVar("T")


class Metadata:
    """Key-value pairs of a file. Every fault is a ConfigError that names the key."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return the value of `key`; `default` where it is missing and that is not None."""
        value = self._values.get(key, default)
        if value is None:
            raise ConfigError(f"the GGUF file has no {key}")
        # Whole numbers are written as floats, too; a boolean is no number.
        if kind is float and type(value) is int:
            value = float(value)
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise ConfigError(f"{key} of the GGUF file is {value!r}, expected {kind.__name__}")
        return cast(T, value)

    def require(self, key: str, *allowed: Any) -> None:
        """Refuse a value of `key`, where it is there, that is not one of `allowed`."""
        if key in self._values and self._values[key] not in allowed:
            wanted = " or ".join(map(repr, allowed))
            raise ConfigError(f"{key} of a GGUF file must be {wanted}, got {self._values[key]!r}")
