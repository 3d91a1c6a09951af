"""config.json of gpt-oss, as published and as transformers saves it."""

from typing import Any

import pytest

from layers.models.gpt_oss.config import GptOssConfig, parse_config
from layers.models.json_fields import ConfigFault
from layers.models.rope_scaling import YarnScaling

# Source: the published files, as families.md of the project's notes has them.
SMALL: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "pad_token_id": 199999,
    "quantization_config": {
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
        "quant_method": "mxfp4",
    },
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}
LARGE = {
    **SMALL,
    "num_hidden_layers": 36,
    "num_local_experts": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
}


def read(**changes: Any) -> GptOssConfig:
    """Return the published configuration with other fields."""
    return parse_config(SMALL | changes, {}, {})


def test_the_published_file_is_read() -> None:
    config = parse_config(SMALL, {"eos_token_id": [200002, 199999, 200012]}, {})

    assert (config.heads, config.key_heads, config.head_dim) == (64, 8, 64)
    assert (config.window, config.sliding) == (128, (True, False) * 12)
    assert config.rope.scaling == YarnScaling(32.0, 32.0, 1.0, 4096, truncate=False)
    assert config.rope.theta == 150000.0
    assert config.rope.attention_factor == pytest.approx(1.3466, abs=1e-4)
    experts = config.experts
    assert (experts.count, experts.chosen, experts.inner, experts.packed) == (32, 4, 2880, True)
    assert (experts.limit, experts.alpha) == (7.0, 1.702)
    assert config.eos_token_ids == (200002, 199999, 200012)


def test_what_a_file_leaves_out_has_the_published_values() -> None:
    absent = ("layer_types", "swiglu_limit", "quantization_config", "attention_bias")
    config = parse_config({k: v for k, v in SMALL.items() if k not in absent}, {}, {})

    assert config.sliding == (True, False) * 12
    assert (config.experts.limit, config.experts.packed) == (7.0, False)


def test_the_spelling_of_transformers_5_is_read() -> None:
    renamed = {k: v for k, v in SMALL.items() if k not in ("rope_scaling", "rope_theta")}
    spelling = {"rope_parameters": {**SMALL["rope_scaling"], "rope_theta": 150000.0}}

    assert parse_config({**renamed, **spelling}, {}, {}) == read()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, 'quant_method must be "mxfp4"'),
        ({"intermediate_size": 2890}, "intermediate_size must be a multiple of 32, got 2890"),
        ({"attention_bias": False}, "attention_bias must be true"),
        ({"auto_map": {"AutoModel": "x.y"}}, "auto_map must be"),
        ({"hidden_act": "gelu"}, 'hidden_act must be "silu"'),
        ({"rope_scaling": None}, "rope_scaling is missing"),
        ({"sliding_window": None}, "sliding_window must be an integer of at least 2"),
        ({"sliding_window": 1}, "sliding_window must be an integer of at least 2"),
        ({"layer_types": SMALL["layer_types"][:-1]}, "layer_types must name 24 layers, got 23"),
        ({"layer_types": ["chunked_attention"] * 24}, "got 'chunked_attention'"),
        ({"num_key_value_heads": 7}, "num_key_value_heads must divide"),
        ({"head_dim": 63}, "head_dim must be even"),
        ({"num_experts_per_tok": 33}, "num_experts_per_tok must be at most"),
        ({"architectures": ["GptOssForSequenceClassification"]}, "only models that generate"),
        ({"bos_token_id": 201088}, "bos_token_id"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigFault, match=message):
        read(**changes)


def test_an_override_names_known_fields() -> None:
    assert parse_config(SMALL, {}, {"sliding_window": 64}).window == 64
    with pytest.raises(ConfigFault, match="override names 'windows'"):
        parse_config(SMALL, {}, {"windows": 64})
