"""config.json and the index of tensors."""

from typing import Any

import pytest

from runtime.errors import ConfigError
from runtime.gguf.metadata import Metadata
from runtime.gguf.model_files import StoredTensor, generation_config, model_config, tensor_index

VALUES: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 30,
    "llama.context_length": 8192,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 1e5,
    "llama.rope.dimension_count": 64,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}
EMBEDDING = StoredTensor(0, (49152, 576), "Q8_0")


def config(tensors: dict[str, StoredTensor] | None = None, **changes: Any) -> dict[str, Any]:
    """Return config.json of other metadata; dots of keys are written as two underscores."""
    values = VALUES | {key.replace("__", "."): value for key, value in changes.items()}
    return model_config(Metadata(values), {"token_embd.weight": EMBEDDING, **(tensors or {})})


def test_a_configuration_is_that_of_the_published_files() -> None:
    made = config()

    assert (made["num_attention_heads"], made["num_key_value_heads"], made["head_dim"]) == (
        9,
        3,
        64,
    )
    assert (made["vocab_size"], made["rope_theta"], made["eos_token_id"]) == (49152, 1e5, 2)
    assert made["tie_word_embeddings"] is True
    assert config({"output.weight": EMBEDDING})["tie_word_embeddings"] is False
    assert generation_config(Metadata(VALUES)) == {"eos_token_id": [2]}
    turns = Metadata({**VALUES, "tokenizer.ggml.eot_token_id": 5})
    assert generation_config(turns) == {"eos_token_id": [2, 5]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general__architecture": "gemma3"}, "must be llama, got 'gemma3'"),
        ({"llama__rope__scaling__type": "yarn"}, "llama.rope.scaling.type"),
        ({"llama__rope__dimension_count": 32}, "llama.rope.dimension_count"),
        ({"llama__block_count": None}, "has no llama.block_count"),
    ],
)
def test_what_is_not_computed_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**changes)


def test_tensors_are_found_by_their_published_names() -> None:
    made = tensor_index(
        config(),
        {
            "token_embd.weight": EMBEDDING,
            "output_norm.weight": StoredTensor(8, (576,), "F32"),
            "blk.12.attn_k.weight": StoredTensor(16, (192, 576), "Q4_1"),
            "blk.12.ffn_down.weight": StoredTensor(24, (576, 1536), "Q4_1"),
        },
    )

    assert list(made) == [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.12.self_attn.k_proj.weight",
        "model.layers.12.mlp.down_proj.weight",
    ]
    assert made["model.layers.12.self_attn.k_proj.weight"] == {
        "offset": 16,
        "shape": [192, 576],
        "kind": "Q4_1",
        "heads": 3,
    }


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        (
            "token_embd.weight",
            "Q4_K",
            "token_embd.weight of the GGUF file is Q4_K, and F32 or Q4_1",
        ),
        ("rope_freqs.weight", "F32", "rope_freqs.weight of the GGUF file is no tensor"),
        ("blk.0.attn_q.bias", "F32", "blk.0.attn_q.bias of the GGUF file is no tensor"),
        ("output_norm", "F32", "output_norm of the GGUF file is no tensor"),
    ],
)
def test_tensors_that_are_not_read_are_named(name: str, kind: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tensor_index(config(), {name: StoredTensor(0, (4, 32), kind)})
