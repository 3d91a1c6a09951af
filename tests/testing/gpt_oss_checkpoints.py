"""Tiny random checkpoints of gpt-oss, made by transformers, which computes them: the reference.

Sizes are such that every mechanism bites: prompts of many windows, positions beyond the original
context, gates beyond the clamp.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.testing.gqa_checkpoints import VOCAB

_ALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "swiglu_limit": 2.0,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": None,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 8.0,
        "beta_slow": 1.0,
        "truncate": False,
    },
}
_FULL, _SLIDING = "full_attention", "sliding_attention"

# What differs from `_ALL`: windows below an SWA page and above one, layers in turn or not.
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "in_turn": {"sliding_window": 12},
    "wide": {
        "sliding_window": 70,
        "num_hidden_layers": 3,
        "layer_types": [_FULL, _SLIDING, _SLIDING],
    },
}


def reference(name: str, **changes: Any) -> Any:
    """Return a model of transformers with random weights; skip the test where it is not there.

    changes  fields that differ from those of the checkpoint
    """
    transformers = pytest.importorskip("transformers")
    config = transformers.GptOssConfig(**{**_ALL, **CHECKPOINTS[name], **changes})
    config._attn_implementation = "eager"
    model = transformers.GptOssForCausalLM(config).float().eval()
    fill_mixture(model)
    return model


@torch.no_grad()
def fill_mixture(model: Any) -> None:
    """Draw all weights of a model of transformers."""
    for name, weight in model.named_parameters():
        _draw(name, weight, tied=model.config.tie_word_embeddings)


def _draw(name: str, weight: torch.Tensor, *, tied: bool) -> None:
    """Draw numbers that keep activations of order one, so that tokens differ."""
    noise, leaf = torch.randn_like(weight), name.rsplit(".", 1)[-1]
    if "norm" in name:
        weight.copy_(1.0 + 0.2 * noise)
    elif leaf.endswith("bias"):
        weight.copy_(0.5 * noise)
    elif leaf == "sinks":
        weight.copy_(2.0 * noise)
    elif "embed" in name:
        weight.copy_(noise * (0.3 if tied else 1.0))
    else:
        inputs = weight.shape[1] if "experts" in name else weight.shape[-1]
        weight.copy_(noise * 1.5 * inputs**-0.5)


def published_config(name: str) -> dict[str, Any]:
    """Return a config.json in the spelling of the published files."""
    config = {
        **_ALL,
        **CHECKPOINTS[name],
        "model_type": "gpt_oss",
        "rms_norm_eps": 1e-5,
        "rope_scaling": _ALL["rope_parameters"],
        "rope_theta": 10000.0,
    }
    del config["rope_parameters"]
    return config


def write_config(name: str, folder: Path) -> Path:
    """Write a folder without weights."""
    (folder / "config.json").write_text(json.dumps(published_config(name)), encoding="utf-8")
    return folder


def write_packed(model: Any, folder: Path) -> Path:
    """Give a model experts that mxfp4 can express, and write it as it is published.

    Codes are drawn, and transformers makes numbers of them.
    """
    convert: Any = pytest.importorskip("transformers.integrations.mxfp4").convert_moe_packed_tensors
    packed = dict[str, torch.Tensor]()
    for name, weight in model.named_parameters():
        if name.endswith("_proj") and "experts" in name:
            count, inputs, outputs = weight.shape
            codes = torch.randint(0, 256, (count, outputs, inputs // 32, 16), dtype=torch.uint8)
            scales = torch.randint(122, 126, codes.shape[:3], dtype=torch.uint8)
            packed |= {f"{name}_blocks": codes, f"{name}_scales": scales}
            with torch.no_grad():
                weight.copy_(convert(codes, scales, dtype=torch.float32))
    model.save_pretrained(folder)
    file, config = folder / "model.safetensors", folder / "config.json"
    plain = load_file(file)
    kept = {k: v for k, v in plain.items() if not (k.endswith("_proj") and "experts" in k)}
    save_file({**kept, **packed}, file, metadata={"format": "pt"})
    quantised = {"quantization_config": {"quant_method": "mxfp4"}}
    fields = json.loads(config.read_text(encoding="utf-8")) | quantised
    config.write_text(json.dumps(fields), encoding="utf-8")
    return folder
