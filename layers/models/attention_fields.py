"""Fields of a config.json that several families have in common: heads, windows, classes."""

from typing import Any

from layers.models.json_fields import ConfigFault, int_from, positive_int, require, string_list

__all__ = ["layer_windows", "read_heads", "read_sliding", "require_fixed", "text_architectures"]

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
    Raises ConfigFault.
    """
    kinds = _layer_types(raw, layers, (_SLIDING, _FULL))
    if kinds is None:
        kinds = [_SLIDING if (layer + 1) % every else _FULL for layer in range(layers)]
    return tuple(kind == _SLIDING for kind in kinds)


def layer_windows(
    raw: dict[str, Any], layers: int, *, used: bool, by_layer: bool
) -> tuple[int, ...]:
    """Return how many tokens each layer attends, its own among them; 0: all.

    used      whether `sliding_window` holds
    by_layer  layers differ: `layer_types` or `max_window_layers` say which have it
    Raises ConfigFault. What a file lacks is what transformers takes then.
    """
    kinds = _layer_types(raw, layers, (_FULL, _SLIDING) if used and by_layer else (_FULL,))
    window: Any = {"sliding_window": 4096, **raw}["sliding_window"]
    if not used or (window is None and _SLIDING not in (kinds or ())):
        return (0,) * layers
    window = int_from({"sliding_window": window}, "sliding_window", 1)
    if not by_layer:
        return (window,) * layers
    if kinds is None:
        first = int_from({"max_window_layers": 28, **raw}, "max_window_layers", 0)
        kinds = [_SLIDING if layer >= first else _FULL for layer in range(layers)]
    return tuple(window if kind == _SLIDING else 0 for kind in kinds)


def _layer_types(raw: dict[str, Any], layers: int, allowed: tuple[str, ...]) -> list[str] | None:
    """Return what kind of attention each layer has; None where the file does not say."""
    if raw.get("layer_types") is None:
        return None
    kinds = string_list(raw, "layer_types", allowed)
    if len(kinds) != layers:
        raise ConfigFault(f"layer_types must name {layers} layers, got {len(kinds)}")
    return kinds
