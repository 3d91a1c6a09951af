"""config.json of the families, as published."""

import json
from pathlib import Path
from typing import Any

import pytest

from layers.models.json_fields import ConfigFault
from layers.models.mla.config import (
    ExpertFields,
    HeadFields,
    IndexFields,
    MlaConfig,
    check_geometry_of_kernels,
    parse_config,
)

# Source: the published files, as families.md of the project's notes has them.
V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "auto_map": {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"},
    "bos_token_id": 0,
    "eos_token_id": 1,
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
V2: dict[str, Any] = {
    **V3,
    "architectures": ["DeepseekV2ForCausalLM"],
    "first_k_dense_replace": 1,
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "model_type": "deepseek_v2",
    "moe_intermediate_size": 1536,
    "n_routed_experts": 160,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 60,
    "quantization_config": None,
    "rope_scaling": {**V3["rope_scaling"], "mscale": 0.707, "mscale_all_dim": 0.707},
    "routed_scaling_factor": 16.0,
    "scoring_func": "softmax",
    "topk_group": 3,
    "topk_method": "group_limited_greedy",
}
V32: dict[str, Any] = {
    **V3,
    "architectures": ["DeepseekV32ForCausalLM"],
    "auto_map": None,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 2048,
    "model_type": "deepseek_v32",
    "quantization_config": {**V3["quantization_config"], "scale_fmt": "ue8m0"},
}
_CUT = Path(__file__).parents[3] / "bench" / "network" / "v2_lite_cut" / "config.json"
LITE: dict[str, Any] = {
    **json.loads(_CUT.read_text(encoding="utf-8")),
    "num_hidden_layers": 27,
    "n_routed_experts": 64,
}


def read(raw: dict[str, Any], **changes: Any) -> MlaConfig:
    """Return a configuration with other fields."""
    return parse_config(raw | changes, {}, {})


def test_v3_is_read() -> None:
    config = parse_config(V3, {"eos_token_id": [1, 7]}, {"num_hidden_layers": 5})

    assert config.heads == HeadFields(128, 128, 64, 128, latent=512, q_rank=1536)
    assert config.experts == ExpertFields(
        count=256,
        chosen=8,
        inner=2048,
        shared=2048,
        groups=8,
        kept=4,
        biased=True,
        normalised=True,
        scale=2.5,
        layers=frozenset({3, 4}),
    )
    assert (config.interleaved, config.rope.attention_factor) == (True, 1.0)
    assert config.eos_token_ids == (1, 7)


def test_v32_is_v3_with_an_indexer() -> None:
    config, without = read(V32), read(V3)

    assert config.index == IndexFields(heads=64, width=128, chosen=2048, interleaved=False)
    assert without.index is None
    assert (config.experts, config.heads) == (without.experts, without.heads)
    turned = read(V32, indexer_rope_interleave=True).index
    assert turned is not None
    assert turned.interleaved


def test_the_scale_of_logits_has_mscale_squared() -> None:
    assert read(V3).logit_scale == pytest.approx(0.135234, abs=1e-6)
    assert read(V2).logit_scale == pytest.approx(0.114721, abs=1e-6)
    assert read(V3, rope_scaling=None).logit_scale == 192**-0.5


def test_v2_and_lite_differ_in_routing_and_queries() -> None:
    config, lite = read(V2), read(LITE)

    assert config.experts is not None
    assert lite.experts is not None
    assert (config.experts.groups, config.experts.kept, config.experts.scale) == (8, 3, 16.0)
    assert (lite.experts.groups, lite.experts.kept, lite.experts.scale) == (1, 1, 1.0)
    assert (config.experts.shared, lite.experts.shared) == (2 * 1536, 2 * 1408)
    assert (config.heads.q_rank, lite.heads.q_rank) == (1536, None)


def test_experts_may_be_in_some_layers_or_in_none() -> None:
    sparse = read(V3, moe_layer_freq=2, num_hidden_layers=8).experts

    assert sparse is not None
    assert sparse.layers == {4, 6}
    assert read(V3, n_routed_experts=None).experts is None
    listed = read(V32, mlp_layer_types=["sparse", "dense", "sparse"], num_hidden_layers=3).experts
    assert listed is not None
    assert listed.layers == {0, 2}


@pytest.mark.parametrize(
    ("raw", "changes", "message"),
    [
        (V3, {"quantization_config": {"quant_method": "awq"}}, "'awq' is not read"),
        (V3, {"quantization_config": {"quant_method": "fp8"}}, "weight_block_size is missing"),
        (V3, {"architectures": ["DeepseekV3Model"]}, "architectures must be DeepseekV3ForCausalLM"),
        (V3, {"hidden_act": "gelu"}, "hidden_act must be"),
        (V3, {"mlp_bias": True}, "mlp_bias must be"),
        (V2, {"norm_topk_prob": True}, "norm_topk_prob must be false"),
        (V3, {"scoring_func": "softmax"}, 'scoring_func must be "sigmoid"'),
        (V3, {"topk_method": "greedy"}, 'topk_method must be "noaux_tc"'),
        (V2, {"topk_method": "noaux_tc"}, "topk_method must be"),
        (V3, {"n_group": 7}, "n_group must divide n_routed_experts 256"),
        (V3, {"n_group": 256}, "groups of at least 2"),
        (V3, {"topk_group": 9}, "topk_group must be at most n_group 8"),
        (V3, {"num_experts_per_tok": 129}, "num_experts_per_tok must be at most 128"),
        (V3, {"qk_rope_head_dim": 63}, "qk_rope_head_dim must be even"),
        (V3, {"kv_lora_rank": None}, "kv_lora_rank must be an integer"),
        (V3, {"bos_token_id": -1}, "bos_token_id must be a token id"),
        (V3, {"rope_scaling": {"type": "dynamic"}}, "rope_scaling.rope_type must be"),
        (V32, {"index_topk": None}, "index_topk must be an integer"),
        (V32, {"index_topk": 2049}, "index_topk must be at most 2048"),
        (V32, {"index_head_dim": 63}, "index_head_dim must be at least qk_rope_head_dim 64"),
        (V32, {"index_n_heads": 0}, "index_n_heads must be an integer of at least 1"),
        (V32, {"indexer_rope_interleave": 1}, "indexer_rope_interleave must be"),
        (V32, {"q_lora_rank": None}, "q_lora_rank must be an integer"),
        (V32, {"layer_types": ["full_attention"]}, "layer_types must be a list of indexed"),
        (V32, {"mlp_layer_types": ["sparse"]}, "mlp_layer_types must name 61 layers, got 1"),
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
        parse_config(V3, {}, {"hiden_size": 4})


@pytest.mark.parametrize("raw", [LITE, V2, V3], ids=["v2_lite", "v2", "v3"])
def test_kernels_of_a_gpu_take_the_published_sizes_and_refuse_others_by_name(
    raw: dict[str, Any],
) -> None:
    check_geometry_of_kernels(parse_config(raw, {}, {}))

    for changes, fault in (
        ({"kv_lora_rank": 1024}, "kv_lora_rank is 1024, and on a GPU it must be at most 512"),
        ({"qk_rope_head_dim": 40}, "qk_rope_head_dim is 40, and on a GPU it must be a multiple"),
        ({"moe_intermediate_size": 48}, "moe_intermediate_size is 48, .* a multiple of 64"),
        ({"v_head_dim": 2, "num_attention_heads": 16}, r"num_attention_heads \* v_head_dim is"),
    ):
        with pytest.raises(ConfigFault, match=fault):
            check_geometry_of_kernels(parse_config(raw, {}, changes))


def test_kernels_that_choose_positions_take_the_published_sizes_and_refuse_others_by_name() -> None:
    check_geometry_of_kernels(parse_config(V32, {}, {}))

    for changes, fault in (
        ({"kv_lora_rank": 256}, "kv_lora_rank is 256, and with an indexer on a GPU it must be 512"),
        ({"qk_rope_head_dim": 32}, "qk_rope_head_dim is 32, .* it must be 64"),
        ({"index_head_dim": 256}, "index_head_dim is 256, .* it must be 32 or 64 or 128"),
        ({"num_attention_heads": 192}, "num_attention_heads is 192, .* at most 128"),
        ({"index_n_heads": 72}, "index_n_heads is 72, .* at most 64"),
        ({"index_n_heads": 60}, "index_n_heads is 60, .* a multiple of 8"),
    ):
        with pytest.raises(ConfigFault, match=fault):
            check_geometry_of_kernels(parse_config(V32, {}, changes))
