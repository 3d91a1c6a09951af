"""config.json of Gemma 3's text models, as published and as transformers saves it."""

from typing import Any

import pytest

from layers.models.gemma3.config import GemmaConfig, parse_config
from layers.models.json_fields import ConfigFault
from layers.models.rope_fields import RopeFields
from layers.models.rope_scaling import LinearScaling

# Source: the published file of the 270M model, as families.md of the project's notes has it.
SMALL: dict[str, Any] = {
    "_sliding_window_pattern": 6,
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 640,
    "intermediate_size": 2048,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": 512,
    "vocab_size": 262144,
}


def read(**changes: Any) -> GemmaConfig:
    """Return the published configuration with other fields."""
    return parse_config(SMALL | changes, {}, {})


def test_the_published_file_is_read() -> None:
    config = parse_config(SMALL, {"eos_token_id": [1, 106]}, {})

    assert (config.heads, config.key_heads, config.head_dim, config.scale) == (4, 1, 256, 0.0625)
    assert config.sliding == (*[True] * 5, False) * 3
    assert config.ropes == (RopeFields(1e6), RopeFields(1e4))
    assert (config.window, config.tied, config.eos_token_ids) == (512, True, (1, 106))
    assert read(rope_scaling={"rope_type": "linear", "factor": 8.0}).ropes == (
        RopeFields(1e6, LinearScaling(8.0)),
        RopeFields(1e4),
    )


def test_the_spelling_of_transformers_5_is_read() -> None:
    old = ("rope_scaling", "rope_theta", "rope_local_base_freq", "_sliding_window_pattern")
    new = {
        "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 3,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    }

    assert parse_config({k: v for k, v in SMALL.items() if k not in old} | new, {}, {}) == read()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_activation": "gelu"}, 'hidden_activation must be "gelu_pytorch_tanh"'),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping must be"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping must be"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention must be false"),
        ({"quantization_config": {"quant_method": "awq"}}, "'awq' is not read"),
        ({"rope_theta": None}, "rope_theta is missing"),
        ({"rope_local_base_freq": 0}, "rope_local_base_freq must be a positive number"),
        ({"rope_parameters": {"full_attention": {}}}, "rope_parameters.sliding_attention is"),
        ({"sliding_window": 1}, "sliding_window must be an integer of at least 2"),
        ({"architectures": ["Gemma3TextModel"]}, "only models that generate text"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigFault, match=message):
        read(**changes)


def test_an_override_names_known_fields() -> None:
    assert parse_config(SMALL, {}, {"sliding_window": 64}).window == 64
    with pytest.raises(ConfigFault, match="override names 'windows'"):
        parse_config(SMALL, {}, {"windows": 64})
