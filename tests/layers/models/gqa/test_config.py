"""config.json of the families, as published."""

from typing import Any

import pytest

from layers.models.gqa.config import GqaConfig, check_geometry_of_kernels, parse_config
from layers.models.json_fields import ConfigFault
from layers.models.rope_scaling import Llama3Scaling

# Source: the published files, as families.md of the project's notes has them.
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "vocab_size": 128256,
}


def family(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    """Return a configuration of another family."""
    return {**LLAMA, "model_type": kind, "architectures": [name], "rope_scaling": None, **fields}


MISTRAL = family("mistral", "MistralForCausalLM", sliding_window=None, head_dim=None)
QWEN2 = family(
    "qwen2",
    "Qwen2ForCausalLM",
    hidden_size=896,
    num_attention_heads=14,
    num_key_value_heads=2,
    sliding_window=32768,
    use_sliding_window=False,
    max_window_layers=24,
)
QWEN3 = family(
    "qwen3",
    "Qwen3ForCausalLM",
    head_dim=128,
    hidden_size=1024,
    num_attention_heads=16,
    layer_types=["full_attention"] * 16,
)
MIXTURE = family(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    head_dim=128,
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
    norm_topk_prob=True,
    decoder_sparse_step=2,
    mlp_only_layers=[3],
)


def read(raw: dict[str, Any], **changes: Any) -> GqaConfig:
    """Return a configuration with other fields."""
    return parse_config(raw | changes, {}, {})


def test_llama_is_read() -> None:
    config = parse_config(LLAMA, {"eos_token_id": [128001, 5]}, {"num_hidden_layers": 2})

    assert (config.heads, config.key_heads, config.head_dim) == (32, 8, 64)
    assert config.rope.scaling == Llama3Scaling(32.0, 1.0, 4.0, 8192)
    assert config.eos_token_ids == (128001, 128008, 128009, 5)
    assert (config.num_layers, config.tied, config.experts) == (2, True, None)


def test_families_differ_in_biases_norms_and_widths_of_heads() -> None:
    def traits(config: GqaConfig) -> tuple[bool, bool, bool, bool, int]:
        biases = (config.qkv_bias, config.output_bias, config.mlp_bias)
        return (*biases, config.head_norms, config.head_dim)

    assert traits(read(LLAMA)) == (False, False, False, False, 64)
    biased = read(LLAMA, attention_bias=True, mlp_bias=True)
    assert traits(biased) == (True, True, True, False, 64)
    assert traits(read(MISTRAL)) == (False, False, False, False, 64)
    assert traits(read(QWEN2)) == (True, False, False, False, 64)
    assert traits(read(QWEN3)) == (False, False, False, True, 128)
    assert traits(read(QWEN3, attention_bias=True)) == (True, True, False, True, 128)


def test_windows_are_those_of_transformers() -> None:
    used = {"use_sliding_window": True, "sliding_window": 64}

    assert not any((*read(LLAMA, **used).windows, *read(QWEN2).windows))
    without = {name: value for name, value in MISTRAL.items() if name != "sliding_window"}
    assert read(without).windows == (4096,) * 16
    assert read(MIXTURE, **used).windows == (64,) * 16
    assert read(QWEN2, **used, max_window_layers=14).windows == (*[0] * 14, 64, 64)
    kinds = ["sliding_attention", *["full_attention"] * 15]
    assert read(QWEN3, **used, layer_types=kinds).windows == (64, *[0] * 15)
    # No context fills it.
    assert not any(read(MISTRAL, sliding_window=131072).windows)
    with pytest.raises(ConfigFault, match="sliding_window 64 is attended on the CPU alone"):
        check_geometry_of_kernels(read(MISTRAL, sliding_window=64))


def test_a_mixture_says_which_layers_have_experts() -> None:
    experts = read(MIXTURE).experts

    assert experts is not None
    assert (experts.count, experts.chosen, experts.inner) == (128, 8, 768)
    assert experts.layers == {1, 5, 7, 9, 11, 13, 15}
    renamed = {k: v for k, v in MIXTURE.items() if k != "num_experts"} | {"num_local_experts": 64}
    other = parse_config(renamed, {}, {}).experts
    assert other is not None
    assert other.count == 64


@pytest.mark.parametrize(
    ("raw", "changes", "message"),
    [
        (LLAMA, {"quantization_config": {"quant_method": "awq"}}, "'awq' is not read"),
        (LLAMA, {"auto_map": {"AutoModel": "modeling.Model"}}, "auto_map asks for code"),
        (LLAMA, {"architectures": ["LlamaModel"]}, "architectures must be LlamaForCausalLM"),
        (LLAMA, {"hidden_act": "gelu"}, "hidden_act must be"),
        (LLAMA, {"num_key_value_heads": 7}, "num_key_value_heads must divide"),
        (LLAMA, {"num_attention_heads": 24}, "num_attention_heads must divide hidden_size"),
        (LLAMA, {"head_dim": 63}, "head_dim must be even"),
        (LLAMA, {"vocab_size": 2**18 + 1}, "vocab_size must be at most"),
        (LLAMA, {"eos_token_id": 128256}, "eos_token_id must be a token id"),
        (LLAMA, {"bos_token_id": -1}, "bos_token_id must be a token id"),
        (LLAMA, {"rope_scaling": {"rope_type": "dynamic"}}, "rope_scaling.rope_type must be"),
        (LLAMA, {"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false"),
        (MISTRAL, {"sliding_window": 0}, "sliding_window must be an integer of at least 1"),
        (QWEN2, {"use_sliding_window": 1}, "use_sliding_window must be"),
        (QWEN3, {"layer_types": ["sliding_attention"]}, "layer_types must be"),
        (QWEN3, {"layer_types": ["full_attention"]}, "layer_types must name 16 layers, got 1"),
        (QWEN3, {"head_dim": None}, "head_dim is missing"),
        (MIXTURE, {"num_experts_per_tok": 129}, "num_experts_per_tok must be at most"),
        (MIXTURE, {"mlp_only_layers": [-1]}, "mlp_only_layers must be an integer"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    raw: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigFault, match=message) as fault:
        read(raw, **changes)

    assert "\n" not in str(fault.value)


def test_an_override_of_no_field_is_refused() -> None:
    with pytest.raises(ConfigFault, match="override names 'hiden_size'"):
        parse_config(LLAMA, {}, {"hiden_size": 4})


def test_published_sizes_suit_the_kernels_of_a_gpu_and_others_are_named() -> None:
    for raw in (LLAMA, MISTRAL, QWEN2, QWEN3, MIXTURE):
        check_geometry_of_kernels(read(raw))

    for changes, words in (
        ({"head_dim": 96}, "head_dim is 96, and on a GPU it must be one of 64, 128, 192, 256"),
        ({"hidden_size": 2080}, "hidden_size is 2080, and on a GPU it must be a multiple of 64"),
        ({"intermediate_size": 100}, "intermediate_size is 100"),
        ({"vocab_size": 128260}, "vocab_size is 128260, and on a GPU it must be a multiple of 8"),
    ):
        with pytest.raises(ConfigFault, match=words):
            check_geometry_of_kernels(read(LLAMA, **{"head_dim": 64, **changes}))
    with pytest.raises(ConfigFault, match="moe_intermediate_size is 48"):
        check_geometry_of_kernels(read(MIXTURE, moe_intermediate_size=48))
