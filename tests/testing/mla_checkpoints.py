"""Tiny random checkpoints of DeepSeek V2-Lite, V2, V3 and V3.2, made by transformers.

transformers writes them and computes them: it is the reference. Sizes are such that every mechanism
bites: positions beyond the original context, groups that lose experts, a factor of the weights.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from layers.weights.quant import quantise_fp8
from tests.testing.gqa_checkpoints import VOCAB, fill, write

_ALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "max_position_embeddings": 4096,
    # Norms of latents have their own, 1e-6.
    "rms_norm_eps": 1e-2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
    "kv_lora_rank": 40,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
    "moe_intermediate_size": 48,
    "n_routed_experts": 16,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
}


def _yarn(mscale: float, mscale_all_dim: float) -> dict[str, Any]:
    return {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 40.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": mscale,
        "mscale_all_dim": mscale_all_dim,
    }


_V2 = {
    "q_lora_rank": 32,
    "n_group": 4,
    "topk_group": 2,
    "topk_method": "group_limited_greedy",
    "n_shared_experts": 2,
    "routed_scaling_factor": 4.0,
    # Published files have both alike, and then cosines have no factor.
    "rope_parameters": _yarn(1.0, 0.707),
}
_V3 = {
    "q_lora_rank": 32,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
    "rope_parameters": _yarn(1.0, 1.0),
}
# A latent that packed records have whole blocks of, and far fewer positions than prompts have.
_V32 = {
    **_V3,
    "kv_lora_rank": 128,
    "index_n_heads": 16,
    "index_head_dim": 32,
    "index_topk": 48,
}
_LITE = {
    "q_lora_rank": None,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.0,
    "rope_parameters": _yarn(0.707, 0.707),
}

# name -> class prefix of transformers, and what differs from `_ALL`.
CHECKPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "v2_lite": ("DeepseekV2", _LITE),
    "v2": ("DeepseekV2", _V2),
    "v3": ("DeepseekV3", _V3),
    "v32": ("DeepseekV32", _V32),
    "v3_biased": (
        "DeepseekV3",
        {**_V3, "attention_bias": True, "tie_word_embeddings": True, "num_experts_per_tok": 1},
    ),
    "v3_halves": ("DeepseekV3", {**_V3, "rope_interleave": False}),
}


def reference(name: str, **changes: Any) -> Any:
    """Return a model of transformers with random weights; skip the test where it is not there.

    changes  fields that differ from those of the checkpoint
    """
    transformers = pytest.importorskip("transformers")
    prefix, fields = CHECKPOINTS[name]
    config = getattr(transformers, f"{prefix}Config")(**{**_ALL, **fields, **changes})
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).float().eval()
    fill(model)
    return model


def write_published(name: str, folder: Path) -> Path:
    """Write a folder without weights, in the spelling of the published files."""
    prefix, fields = CHECKPOINTS[name]
    kind = prefix.lower().replace("deepseek", "deepseek_")
    routing = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True}
    rope = dict(fields["rope_parameters"])
    config = {**_ALL, **fields, "model_type": kind, "moe_layer_freq": 1}
    del config["rope_parameters"]
    config |= {"scoring_func": "softmax"} if kind == "deepseek_v2" else routing
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_deepseek.DeepseekForCausalLM"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def write_fp8(
    model: Any, folder: Path, *, scale_dtype: torch.dtype = torch.float32
) -> tuple[Path, Path]:
    """Write a checkpoint as V3 and Qwen3-FP8 are published, and the same with numbers expanded.

    Projections and experts of the first are e4m3 with scales that are no powers of two; a draft
    layer lies behind the last layer. Returns both folders.
    """
    plain, quantised = folder / "plain", folder / "fp8"
    tensors = load_file(write(model, plain) / "model.safetensors")
    stored = dict(tensors)
    for name, tensor in tensors.items():
        plainly = ("norm", "embed", "lm_head", "mlp.gate.", "weights_proj")
        kept = any(part in name for part in plainly)
        if kept or not name.endswith(".weight"):
            continue
        codes, powers = quantise_fp8(tensor)
        scales = (powers.float() * (1.0 + torch.rand(powers.shape))).to(scale_dtype)
        stored[name], stored[f"{name}_scale_inv"] = codes, scales
        rows = scales.float().repeat_interleave(128, 0)[: len(codes)]
        tensors[name] = codes.float() * rows.repeat_interleave(128, 1)[:, : codes.shape[1]]
    draft = f"model.layers.{model.config.num_hidden_layers}"
    for leaf in ("eh_proj", "embed_tokens", "mlp.experts.0.up_proj", "shared_head.head"):
        stored[f"{draft}.{leaf}.weight"] = torch.zeros(4, 4).to(torch.float8_e4m3fn)
        stored[f"{draft}.{leaf}.weight_scale_inv"] = torch.ones(1, 1)
    quantised.mkdir()
    save_file(stored, quantised / "model.safetensors")
    save_file(tensors, plain / "model.safetensors")
    config = json.loads((plain / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    }
    (quantised / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return quantised, plain
