"""Rope settings of a config.json, in either spelling.

transformers 4 writes `rope_theta` and `rope_scaling`, transformers 5 `rope_parameters`, which holds
both. Scalings whose frequencies depend on a sequence's length are not known here.
"""

import math
from dataclasses import dataclass
from typing import Any

from layers.models.json_fields import (
    ConfigFault,
    json_object,
    positive_int,
    positive_number,
    require,
)
from layers.models.rope_scaling import LinearScaling, Llama3Scaling, RopeScaling, YarnScaling

__all__ = ["RopeFields", "read_rope"]

_DEFAULT_THETA = 10000.0
_MSCALES = ("mscale", "mscale_all_dim")
_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class RopeFields:
    """What turns queries and keys.

    theta             base of the frequencies
    scaling           None for plain rope
    attention_factor  of cosines and sines
    logit_factor      of the logits of whole heads, turned channels and others
    """

    theta: float
    scaling: RopeScaling | None = None
    attention_factor: float = 1.0
    logit_factor: float = 1.0


def read_rope(raw: dict[str, Any], *, mscale: bool = False) -> RopeFields:
    """Return the rope settings of a parsed config.json.

    mscale  YaRN's `mscale_all_dim` multiplies logits, too, as DeepSeek publishes it
    Raises ConfigFault, naming the field, for what is not computed.
    """
    where, fields = "rope_scaling.", raw.get("rope_scaling") or {}
    if raw.get("rope_parameters") is not None:
        where, fields = "rope_parameters.", raw["rope_parameters"]
    fields = json_object(fields, where[:-1])
    theta_of = {"rope_theta": _DEFAULT_THETA, **raw, **fields}
    theta = positive_number(theta_of, "rope_theta")
    if theta <= 1:
        raise ConfigFault(f"rope_theta must be above 1, got {theta:g}")
    for name, source in (("", raw), (where, fields)):
        if source.get("partial_rotary_factor") is not None:
            require(source, "partial_rotary_factor", (1, 1.0), name)
    kind = fields.get("rope_type", fields.get("type", "default"))
    if kind not in _TYPES:
        raise ConfigFault(f"{where}rope_type must be {' or '.join(_TYPES)}, got {kind!r}")
    if kind == "default":
        return RopeFields(theta)
    factor = positive_number(fields, "factor", where)
    if kind == "linear":
        return RopeFields(theta, LinearScaling(factor))
    original = {"original_max_position_embeddings": raw.get("max_position_embeddings"), **fields}
    positions = positive_int(original, "original_max_position_embeddings", where)
    if kind == "llama3":
        return RopeFields(theta, _llama3(fields, where, factor, positions))
    return _yarn(theta, fields, where, factor, positions, mscale=mscale)


def _llama3(fields: dict[str, Any], where: str, factor: float, positions: int) -> Llama3Scaling:
    low = positive_number(fields, "low_freq_factor", where)
    high = positive_number(fields, "high_freq_factor", where)
    if low >= high:
        raise ConfigFault(f"{where}low_freq_factor must be below high_freq_factor, got {low:g}")
    return Llama3Scaling(factor, low, high, positions)


def _yarn(
    theta: float,
    fields: dict[str, Any],
    where: str,
    factor: float,
    positions: int,
    *,
    mscale: bool,
) -> RopeFields:
    given = {name: value for name, value in fields.items() if value is not None}
    truncate = {"truncate": True, **given}
    require(truncate, "truncate", (True, False), where)
    scaling = YarnScaling(
        factor=factor,
        beta_fast=positive_number({"beta_fast": 32, **given}, "beta_fast", where),
        beta_slow=positive_number({"beta_slow": 1, **given}, "beta_slow", where),
        original_max_position_embeddings=positions,
        truncate=truncate["truncate"],
    )
    attention, whole = _magnitudes(given, where, factor, mscale=mscale)
    found = positive_number({"attention_factor": attention, **given}, "attention_factor", where)
    return RopeFields(theta, scaling, found, whole**2)


def _magnitudes(
    fields: dict[str, Any], where: str, factor: float, *, mscale: bool
) -> tuple[float, float]:
    """Return the factors of cosines and sines, and of whole queries and keys."""

    def magnitude(share: float) -> float:
        return 0.1 * share * math.log(factor) + 1.0 if factor > 1 else 1.0

    named = [name for name in _MSCALES if fields.get(name)]
    if not named or (len(named) == 1 and not mscale):
        return magnitude(1.0), 1.0
    # DeepSeek's codes and transformers differ in what one without the other means.
    turned, whole = (magnitude(positive_number(fields, name, where)) for name in _MSCALES)
    return turned / whole, whole if mscale else 1.0
