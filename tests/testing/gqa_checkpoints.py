"""Tiny random checkpoints of the families with grouped-query attention, made by transformers.

transformers writes them and computes them: it is the reference.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

VOCAB = 512
MARGIN = 1e-4

_DENSE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}
_MIXTURE = {
    "head_dim": 32,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "mlp_only_layers": [2],
    "decoder_sparse_step": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}

# name -> class prefix of transformers, and what differs from `_DENSE`.
CHECKPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": _LLAMA3}),
    "llama_biased": (
        "Llama",
        {"attention_bias": True, "mlp_bias": True, "rope_parameters": _LINEAR, "head_dim": 24},
    ),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 20, "rope_parameters": _YARN}),
    "qwen2": ("Qwen2", {"use_sliding_window": False, "rope_parameters": _YARN}),
    "mistral_window": ("Mistral", {"sliding_window": 17, "rope_parameters": _YARN}),
    "qwen2_windows": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 70, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 48, "tie_word_embeddings": True, "rope_parameters": _LLAMA3}),
    "qwen3_moe": ("Qwen3Moe", {"norm_topk_prob": True, **_MIXTURE}),
    "qwen3_moe_other": (
        "Qwen3Moe",
        {"norm_topk_prob": False, **_MIXTURE, "decoder_sparse_step": 2},
    ),
}


def reference(name: str, **more: Any) -> Any:
    """Return a model of transformers with random weights; skip the test where it is not there.

    more  fields of its configuration
    """
    transformers = pytest.importorskip("transformers")
    prefix, fields = CHECKPOINTS[name]
    config = getattr(transformers, f"{prefix}Config")(**{**_DENSE, **fields, **more})
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).float().eval()
    fill(model)
    return model


@torch.no_grad()
def fill(model: Any) -> None:
    """Draw all weights of a model of transformers, and its buffers that files hold."""
    stored = model.state_dict()
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        if name in stored:
            _draw(name, weight, tied=model.config.tie_word_embeddings)


def _draw(name: str, weight: Tensor, *, tied: bool) -> None:
    """Draw numbers that keep activations of order one, so that tokens differ."""
    noise = torch.randn_like(weight)
    if "norm" in name:
        weight.copy_(1.0 + 0.2 * noise)
    elif name.endswith("bias"):
        weight.copy_(0.5 * noise)
    elif "embed" in name:
        weight.copy_(noise * (0.3 if tied else 1.0))
    else:
        weight.copy_(noise * 1.5 / math.sqrt(weight.shape[-1]))


def write(model: Any, folder: Path) -> Path:
    """Write a model's checkpoint folder, without a tokenizer."""
    model.save_pretrained(folder)
    return folder


def write_config(name: str, folder: Path) -> Path:
    """Write a folder without weights, in the spelling of the published files."""
    prefix, fields = CHECKPOINTS[name]
    kind = {"Qwen3Moe": "qwen3_moe"}.get(prefix, prefix.lower())
    rope = {"rope_parameters": {"rope_theta": 10000.0}, **fields}["rope_parameters"]
    config = {**_DENSE, **fields, "model_type": kind, "rope_theta": rope["rope_theta"]}
    config["rope_scaling"] = rope if "factor" in rope else None
    config.pop("rope_parameters", None)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@torch.inference_mode()
def assert_greedy(
    model: Any, prompt: list[int], tokens: list[int], *, margin: float = MARGIN
) -> None:
    """Fail unless each token is the likeliest by `model`, or as likely to within `margin`."""
    for i, (token, mine) in enumerate(
        zip(tokens, _chosen_from(model, prompt, tokens), strict=True)
    ):
        best = int(mine.argmax())
        behind = float(mine[best] - mine[token])
        assert behind < margin, f"token {i} is {token}, the reference has {best} ({behind:g} more)"


@torch.inference_mode()
def greedy_share(model: Any, prompt: list[int], tokens: list[int]) -> float:
    """Return the share of tokens that are the likeliest by `model`, each behind those before it."""
    best = _chosen_from(model, prompt, tokens).argmax(-1)
    return float((best == torch.tensor(tokens)).float().mean())


def _chosen_from(model: Any, prompt: list[int], tokens: list[int]) -> Tensor:
    """Return the logits [tokens, vocabulary] that each token was chosen from."""
    logits = model(torch.tensor([[*prompt, *tokens]]), use_cache=False).logits[0].float()
    return logits[len(prompt) - 1 : -1]
