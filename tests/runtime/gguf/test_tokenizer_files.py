"""tokenizer.json and tokenizer_config.json."""

import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from runtime.errors import ConfigError
from runtime.gguf.metadata import Metadata
from runtime.gguf.tokenizer_files import tokenizer, tokenizer_config

VALUES: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["<|im_start|>", "<|im_end|>", "a", "b", "ab", "1", "11", "Ġ", "[x]"],
    "tokenizer.ggml.token_type": [3, 3, 1, 1, 1, 1, 1, 1, 4],
    "tokenizer.ggml.merges": ["a b", "1 1"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.chat_template": "{{ messages }}",
}


def loaded(**changes: Any) -> Tokenizer:
    """Return the tokenizer of other metadata."""
    values = VALUES | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return Tokenizer.from_str(json.dumps(tokenizer(Metadata(values))))


def test_text_is_split_and_merged_as_the_file_says() -> None:
    made = loaded()

    assert made.encode("<|im_start|>ab ab[x]").ids == [0, 4, 7, 4, 8]
    assert made.decode([4, 7, 4]) == "ab ab"
    # Digits are split one by one, whatever may be merged.
    assert made.encode("11").ids == [5, 5]
    assert loaded(pre="gpt-2").encode("11").ids == [6]
    special = {token.content for token in made.get_added_tokens_decoder().values() if token.special}
    assert special == {"<|im_start|>", "<|im_end|>"}


def test_facts_name_tokens_and_the_template() -> None:
    assert tokenizer_config(Metadata(VALUES)) == {
        "add_bos_token": False,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "chat_template": "{{ messages }}",
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "llama"}, "tokenizer.ggml.model of a GGUF file must be 'gpt2', got 'llama'"),
        ({"pre": "qwen2"}, "tokenizer.ggml.pre of a GGUF file must be"),
        ({"add_bos_token": True}, "tokenizer.ggml.add_bos_token"),
        ({"add_space_prefix": True}, "tokenizer.ggml.add_space_prefix"),
    ],
)
def test_another_tokenizer_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loaded(**changes)
