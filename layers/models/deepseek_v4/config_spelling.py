"""The transformers spelling of a V4 configuration, put into the published one.

transformers saves layer kinds by name (`layer_types`, `mlp_layer_types`), the rotated share of
a head (`partial_rotary_factor`) and both ropes under `rope_parameters`.
"""

from typing import Any

from layers.models.json_fields import (
    ConfigFault,
    json_object,
    positive_int,
    positive_number,
    string_list,
)

_LAYER_TYPE_RATIO = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}
_RATES = {kind: ratio for kind, ratio in _LAYER_TYPE_RATIO.items() if ratio}
SPELLING_FIELDS = frozenset(
    {"layer_types", "mlp_layer_types", "partial_rotary_factor", "compress_rates", "rope_parameters"}
)


def published_spelling(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `raw` with what only transformers names added under published names.

    A field that is there in the published spelling wins; of ropes all do where `rope_scaling` is
    one. Raises ConfigFault for what has no published equivalent.
    """
    raw = dict(raw)
    if "qk_rope_head_dim" not in raw and "partial_rotary_factor" in raw:
        share = positive_number(raw, "partial_rotary_factor")
        if share > 1:
            raise ConfigFault(f"partial_rotary_factor must be at most 1, got {share:g}")
        raw["qk_rope_head_dim"] = int(positive_int(raw, "head_dim") * share)
    if raw.get("compress_rates", _RATES) != _RATES:
        raise ConfigFault(f"compress_rates must be {_RATES}, got {raw['compress_rates']!r}")
    if "compress_ratios" not in raw and "layer_types" in raw:
        kinds = string_list(raw, "layer_types", tuple(_LAYER_TYPE_RATIO))
        raw["compress_ratios"] = [_LAYER_TYPE_RATIO[kind] for kind in kinds]
    if "num_hash_layers" not in raw and "mlp_layer_types" in raw:
        kinds = string_list(raw, "mlp_layer_types", ("hash_moe", "moe"))
        hashed = kinds.count("hash_moe")
        if "hash_moe" in kinds[hashed:]:
            raise ConfigFault("mlp_layer_types must begin with all of its hash_moe layers")
        raw["num_hash_layers"] = hashed
    if raw.get("rope_parameters") is not None:
        _unfold_rope(raw, json_object(raw["rope_parameters"], "rope_parameters"))
    return raw


def _unfold_rope(raw: dict[str, Any], parameters: dict[str, Any]) -> None:
    published = raw.get("rope_scaling") is not None
    if "main" not in parameters and "compress" not in parameters:
        if not published:
            raw["rope_scaling"] = parameters
        return
    main = json_object(parameters.get("main"), "rope_parameters.main")
    compress = json_object(parameters.get("compress"), "rope_parameters.compress")
    if main.get("rope_type", "default") != "default":
        raise ConfigFault(f"rope_parameters.main must be default rope, got {main['rope_type']!r}")
    if compress.get("attention_factor", 1.0) != 1.0:
        raise ConfigFault("rope_parameters.compress.attention_factor must be 1.0")
    for name, half in (("rope_theta", main), ("compress_rope_theta", compress)):
        # What transformers reads is in the ropes; one beside them may be left over.
        if "rope_theta" in half and not (published and name in raw):
            raw[name] = half["rope_theta"]
    if not published:
        raw["rope_scaling"] = compress
