"""A checkpoint folder without weights: small enough that a server on the CPU is quick.

Served with `--load-format dummy`, which fills the network with fixed random numbers. It has every
kind of layer, and no tokenizer: prompts are token ids.
"""

import json
from pathlib import Path
from typing import Any

CONFIG = {
    "model_type": "deepseek_v4",
    "architectures": ["DeepseekV4ForCausalLM"],
    "torch_dtype": "bfloat16",
    "vocab_size": 512,
    "hidden_size": 64,
    "num_hidden_layers": 5,
    "compress_ratios": [0, 4, 128, 4, 128, 0],
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 32,
    "o_groups": 2,
    "o_lora_rank": 16,
    "sliding_window": 128,
    "index_n_heads": 4,
    "index_head_dim": 32,
    "index_topk": 24,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "num_hash_layers": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "hidden_act": "silu",
    "swiglu_limit": 2.5,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 1024,
    },
    "max_position_embeddings": 16384,
    "num_nextn_predict_layers": 1,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def tiny_model_flags(folder: Path, **changed: Any) -> tuple[str, ...]:
    """Write the checkpoint into `folder`; return the flags that serve it.

    changed  entries of config.json that differ
    """
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changed}), encoding="utf-8")
    return (
        *("--model-path", str(folder), "--load-format", "dummy", "--random-seed", "0"),
        *("--dtype", "float32", "--kv-cache-dtype", "fp32"),
    )
