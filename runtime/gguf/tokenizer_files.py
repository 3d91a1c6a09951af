"""What a GGUF file says of text: tokenizer.json and tokenizer_config.json."""

from typing import Any, cast

from runtime.errors import ConfigError
from runtime.gguf.metadata import Metadata

__all__ = ["tokenizer", "tokenizer_config"]

# Values of tokenizer.ggml.token_type.
_CONTROL, _USER_DEFINED = 3, 4
_BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
# How text is split before pairs are merged, by tokenizer.ggml.pre.
_SPLITS: dict[str, dict[str, Any]] = {
    "gpt-2": _BYTE_LEVEL,
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL],
    },
}


def tokenizer(metadata: Metadata) -> dict[str, Any]:
    """Return tokenizer.json. Raises ConfigError for a tokenizer that is not known."""
    kind = metadata.get("tokenizer.ggml.model", str)
    if kind != "gpt2":
        raise ConfigError(f"tokenizer.ggml.model of a GGUF file must be 'gpt2', got {kind!r}")
    split = metadata.get("tokenizer.ggml.pre", str)
    if split not in _SPLITS:
        known = " or ".join(map(repr, _SPLITS))
        raise ConfigError(f"tokenizer.ggml.pre of a GGUF file must be {known}, got {split!r}")
    metadata.require("tokenizer.ggml.add_bos_token", False)
    metadata.require("tokenizer.ggml.add_eos_token", False)
    metadata.require("tokenizer.ggml.add_space_prefix", False)
    tokens = cast(list[str], metadata.get("tokenizer.ggml.tokens", list))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(tokens, metadata),
        "normalizer": None,
        "pre_tokenizer": _SPLITS[split],
        "post_processor": None,
        "decoder": _BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": metadata.get("tokenizer.ggml.merges", list),
        },
    }


def tokenizer_config(metadata: Metadata) -> dict[str, Any]:
    """Return tokenizer_config.json."""
    tokens = cast(list[str], metadata.get("tokenizer.ggml.tokens", list))
    facts: dict[str, Any] = {"add_bos_token": False}
    for name in ("bos_token", "eos_token"):
        key = f"tokenizer.ggml.{name}_id"
        if key in metadata:
            facts[name] = tokens[metadata.get(key, int)]
    if "tokenizer.chat_template" in metadata:
        facts["chat_template"] = metadata.get("tokenizer.chat_template", str)
    return facts


def _added(tokens: list[str], metadata: Metadata) -> list[dict[str, Any]]:
    kinds = cast(list[int], metadata.get("tokenizer.ggml.token_type", list))
    return [
        {
            "id": i,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == _CONTROL,
        }
        for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]
