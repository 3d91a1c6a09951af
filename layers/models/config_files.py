"""The files that a model's configuration is read from."""

import json
from pathlib import Path
from typing import Any

from layers.models.json_fields import ConfigFault, json_object

__all__ = ["parse_override", "read_files"]


def read_files(
    folder: Path, override: str | None = None
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return `config.json`, `generation_config.json` (empty if it is not there), and the override.

    override  "num_hidden_layers=8,index_topk=64": replaces entries of config.json; the values
              are JSON
    Raises ConfigFault for files that cannot be read.
    """
    raw = _read_json(folder / "config.json")
    generation_path = folder / "generation_config.json"
    generation = _read_json(generation_path) if generation_path.exists() else {}
    return raw, generation, parse_override(override or "")


def parse_override(override: str) -> dict[str, Any]:
    """Return the entries of "key=value,..."; values are JSON. Raises ConfigFault."""
    decoder = json.JSONDecoder()
    result: dict[str, Any] = {}
    rest = override.strip()
    while rest:
        key, equals, rest = rest.partition("=")
        key = key.strip()
        if not equals:
            raise ConfigFault(f"override must be key=value pairs separated by commas, got {key!r}")
        rest = rest.lstrip()
        try:
            result[key], end = decoder.raw_decode(rest)
        except ValueError:
            raise ConfigFault(f"override of {key} must be a JSON value, got {rest!r}") from None
        rest = rest[end:].strip()
        if rest and (not rest.startswith(",") or rest == ","):
            raise ConfigFault(f"override of {key} is followed by {rest!r}, expected a comma")
        rest = rest[1:]
    return result


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigFault(f"there is no {path.name} in {path.parent}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigFault(f"{path} cannot be read as JSON: {error}") from error
    return json_object(value, str(path))
