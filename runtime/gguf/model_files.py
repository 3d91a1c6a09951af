"""What a GGUF file says of a network: config.json, and where each tensor lies."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime.errors import ConfigError
from runtime.gguf.metadata import Metadata

__all__ = ["StoredTensor", "generation_config", "model_config", "tensor_index"]

ARCHITECTURES = ("llama",)
KINDS = ("F32", "Q4_1", "Q8_0")
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
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
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of the file: bytes from its beginning, dense shape, and how numbers are kept."""

    offset: int
    shape: tuple[int, ...]
    kind: str


def model_config(metadata: Metadata, tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """Return config.json. Raises ConfigError for what is not computed."""
    kind = metadata.get("general.architecture", str)
    if kind not in ARCHITECTURES:
        known = " or ".join(ARCHITECTURES)
        raise ConfigError(f"general.architecture of a GGUF file must be {known}, got {kind!r}")
    metadata.require(f"{kind}.rope.scaling.type", "none")
    hidden = metadata.get(f"{kind}.embedding_length", int)
    heads = metadata.get(f"{kind}.attention.head_count", int)
    head_dim = metadata.get(f"{kind}.attention.key_length", int, hidden // max(1, heads))
    metadata.require(f"{kind}.rope.dimension_count", head_dim)
    metadata.require(f"{kind}.attention.value_length", head_dim)
    vocabulary = tensors.get("token_embd.weight")
    if vocabulary is None:
        raise ConfigError("the GGUF file has no token_embd.weight")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": kind,
        "vocab_size": vocabulary.shape[0],
        "hidden_size": hidden,
        "intermediate_size": metadata.get(f"{kind}.feed_forward_length", int),
        "num_hidden_layers": metadata.get(f"{kind}.block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get(f"{kind}.attention.head_count_kv", int, heads),
        "head_dim": head_dim,
        "rms_norm_eps": metadata.get(f"{kind}.attention.layer_norm_rms_epsilon", float),
        "max_position_embeddings": metadata.get(f"{kind}.context_length", int),
        "rope_theta": metadata.get(f"{kind}.rope.freq_base", float, 10000.0),
        "tie_word_embeddings": "output.weight" not in tensors,
        **_token_ids(metadata, "bos_token_id", "eos_token_id"),
    }


def generation_config(metadata: Metadata) -> dict[str, Any]:
    """Return generation_config.json: the ends of a text and of a turn."""
    found = _token_ids(metadata, "eos_token_id", "eot_token_id")
    return {"eos_token_id": list(found.values())}


def tensor_index(
    config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]
) -> dict[str, dict[str, Any]]:
    """Return what `layers.weights.gguf_checkpoint` reads. Raises ConfigError, naming a tensor."""
    index: dict[str, dict[str, Any]] = {}
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, tensor in tensors.items():
        if tensor.kind not in KINDS:
            known = " or ".join(KINDS)
            raise ConfigError(f"{name} of the GGUF file is {tensor.kind}, and {known} are read")
        in_layer, leaf = _LAYER.fullmatch(name), name.removesuffix(".weight")
        if in_layer and in_layer[2] in _LAYER_NAMES:
            leaf = in_layer[2]
            published = f"model.layers.{in_layer[1]}.{_LAYER_NAMES[leaf]}.weight"
        elif leaf in _NAMES and leaf != name:
            published = f"{_NAMES[leaf]}.weight"
        else:
            raise ConfigError(f"{name} of the GGUF file is no tensor of this architecture")
        index[published] = {
            "offset": tensor.offset,
            "shape": list(tensor.shape),
            "kind": tensor.kind,
            **({"heads": heads[leaf]} if leaf in heads else {}),
        }
    return index


def _token_ids(metadata: Metadata, *names: str) -> dict[str, int]:
    keys = {name: f"tokenizer.ggml.{name}" for name in names}
    return {name: metadata.get(key, int) for name, key in keys.items() if key in metadata}
