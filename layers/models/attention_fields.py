"""Fields of a config.json that several families have in common: heads, windows, classes."""

from typing import Any

from layers.models.json_fields import ConfigFault, positive_int, require, string_list

__all__ = ["read_heads", "read_sliding", "require_fixed", "text_architectures"]

_SLIDING, _FULL = "sliding_attention", "full_attention"


def require_fixed(raw: dict[str, Any], fixed: tuple[tuple[str, tuple[object, ...]], ...]) -> None:
    """Raise ConfigFault where a field that is there has another value than is computed."""
    for name, allowed in fixed:
        if name in raw:
            require(raw, name, allowed)


def read_heads(raw: dict[str, Any]) -> tuple[int, int, int]:
    """Return the heads of queries and of keys, and their width. Raises ConfigFault."""
    heads, key_heads = (
        positive_int(raw, name) for name in ("num_attention_heads", "num_key_value_heads")
    )
    if heads % key_heads:
        raise ConfigFault(
            f"num_key_value_heads must divide num_attention_heads {heads}, got {key_heads}"
        )
    width = positive_int(raw, "head_dim")
    if width % 2:
        raise ConfigFault(f"head_dim must be even, got {width}")
    return heads, key_heads, width


def text_architectures(raw: dict[str, Any], wanted: str) -> tuple[str, ...]:
    """Return the architectures, `wanted` among them if there are any. Raises ConfigFault."""
    names = tuple(string_list({"architectures": [], **raw}, "architectures", None))
    if names and wanted not in names:
        raise ConfigFault(
            f"architectures must be {wanted}, got {', '.join(names)}: "
            "only models that generate text are served"
        )
    return names


def read_sliding(raw: dict[str, Any], layers: int, *, every: int) -> tuple[bool, ...]:
    """Return which layers attend a window.

    every  layers of which the last attends everything, where the file does not say
    Raises ConfigFault where not both kinds are there.
    """
    if raw.get("layer_types") is None:
        kinds = [_SLIDING if (layer + 1) % every else _FULL for layer in range(layers)]
    else:
        kinds = string_list(raw, "layer_types", (_SLIDING, _FULL))
    if len(kinds) != layers:
        raise ConfigFault(f"layer_types must name {layers} layers, got {len(kinds)}")
    if len(set(kinds)) != 2:
        raise ConfigFault(f"layer_types must be {_SLIDING} and {_FULL}, got one of them alone")
    return tuple(kind == _SLIDING for kind in kinds)
