"""The transformers spelling of a configuration."""

from typing import Any

import pytest

from layers.models.deepseek_v4.config_spelling import published_spelling
from layers.models.json_fields import ConfigFault

SAVED: dict[str, Any] = {
    "head_dim": 512,
    "partial_rotary_factor": 0.125,
    "layer_types": [
        "sliding_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
    ],
    "mlp_layer_types": ["hash_moe", "moe", "moe"],
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
    "rope_parameters": {
        "main": {"rope_type": "default", "rope_theta": 10000},
        "compress": {"rope_type": "yarn", "factor": 16, "rope_theta": 160000},
    },
}


def test_every_field_gets_its_published_name() -> None:
    raw = published_spelling(SAVED)

    assert raw["qk_rope_head_dim"] == 64
    assert raw["compress_ratios"] == [0, 4, 128]
    assert raw["num_hash_layers"] == 1
    assert (raw["rope_theta"], raw["compress_rope_theta"]) == (10000, 160000)
    assert raw["rope_scaling"]["factor"] == 16
    assert "rope_scaling" not in SAVED


def test_the_published_spelling_wins() -> None:
    raw = published_spelling({**SAVED, "qk_rope_head_dim": 16, "compress_ratios": [0]})

    assert (raw["qk_rope_head_dim"], raw["compress_ratios"]) == (16, [0])
    scaling = {"type": "yarn", "factor": 4}
    raw = published_spelling({**SAVED, "rope_scaling": scaling, "rope_theta": 5})
    assert (raw["rope_theta"], raw["compress_rope_theta"]) == (5, 160000)
    assert raw["rope_scaling"] == scaling


def test_rope_parameters_may_be_flat() -> None:
    flat = {"rope_type": "yarn", "factor": 4}

    assert published_spelling({"rope_parameters": flat})["rope_scaling"] == flat


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"mlp_layer_types": ["moe", "hash_moe"]}, "mlp_layer_types"),
        ({"compress_rates": {"compressed_sparse_attention": 8}}, "compress_rates"),
        ({"partial_rotary_factor": "half"}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 1e299}, "partial_rotary_factor must be at most 1"),
        ({"rope_parameters": {"main": {}}}, "rope_parameters.compress"),
        ({"rope_parameters": {"main": {"rope_type": "yarn"}, "compress": {}}}, "rope_parameters"),
        ({"rope_parameters": {"main": {}, "compress": {"attention_factor": 1.2}}}, "attention"),
    ],
)
def test_what_has_no_published_equivalent_is_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigFault, match=field):
        published_spelling({**SAVED, **change})
