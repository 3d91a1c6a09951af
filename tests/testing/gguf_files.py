"""GGUF files of tiny random networks, written by the library."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

HIDDEN, INNER, HEADS, KEY_HEADS, VOCAB = 64, 96, 4, 2, 6
TOKENS = ["<|im_start|>", "<|im_end|>", "a", "b", "ab", "1"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def write_gguf(
    path: Path,
    *,
    kind: str = "Q4_1",
    architecture: str = "llama",
    pre: str = "smollm",
    extra: dict[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Write a network of one layer; return its tensors as written, by their names there."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in (
        *(("block_count", 1), ("context_length", 128), ("embedding_length", HIDDEN)),
        *(("feed_forward_length", INNER), ("attention.head_count", HEADS)),
        *(("attention.head_count_kv", KEY_HEADS), ("rope.dimension_count", HIDDEN // HEADS)),
    ):
        writer.add_uint32(f"{architecture}.{name}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32(f"{architecture}.rope.freq_base", 5000.0)
    _add_tokenizer(writer, gguf, pre)
    tensors = _tensors() | (extra or {})
    for name, tensor in tensors.items():
        stored = "F32" if tensor.ndim == 1 else "Q8_0" if name == "token_embd.weight" else kind
        number = gguf.GGMLQuantizationType[stored]
        writer.add_tensor(name, gguf.quants.quantize(tensor, number), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def _add_tokenizer(writer: Any, gguf: Any, pre: str) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control, control, *[normal] * 4])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template(TEMPLATE)


def _tensors() -> dict[str, np.ndarray]:
    def matrix(rows: int, columns: int) -> np.ndarray:
        return np.random.standard_normal((rows, columns)).astype(np.float32)

    keys = HIDDEN // HEADS * KEY_HEADS
    return {
        "token_embd.weight": matrix(VOCAB, HIDDEN),
        "blk.0.attn_norm.weight": matrix(1, HIDDEN)[0],
        "blk.0.attn_q.weight": matrix(HIDDEN, HIDDEN),
        "blk.0.attn_k.weight": matrix(keys, HIDDEN),
        "blk.0.attn_v.weight": matrix(keys, HIDDEN),
        "blk.0.attn_output.weight": matrix(HIDDEN, HIDDEN),
        "blk.0.ffn_norm.weight": matrix(1, HIDDEN)[0],
        "blk.0.ffn_gate.weight": matrix(INNER, HIDDEN),
        "blk.0.ffn_up.weight": matrix(INNER, HIDDEN),
        "blk.0.ffn_down.weight": matrix(HIDDEN, INNER),
        "output_norm.weight": matrix(1, HIDDEN)[0],
    }
