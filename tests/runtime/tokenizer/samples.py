"""Small tokenizers: one id per byte, made here, and written as a checkpoint has them."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

EOS, THINK, MERGED = 256, 257, 258
VOCAB = 300
MERGED_TEXT = "世界"


def spelling_of_bytes() -> dict[int, str]:
    """Return byte -> character of the byte-level alphabet: printable bytes stand for themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    spelling = {byte: chr(byte) for byte in printable}
    return spelling | {byte: chr(256 + i) for i, byte in enumerate(others)}


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer whose id of a byte is the byte; 256 special, 257 and 258 added."""
    vocab = {character: byte for byte, character in spelling_of_bytes().items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken(MERGED_TEXT)])
    return tokenizer


def byte_fallback_tokenizer() -> Tokenizer:
    """Return a tokenizer that spells bytes <0x00>..: its decoder judges whole runs of bytes."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"a": 256}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def write_checkpoint(folder: Path, tokenizer: Tokenizer | None, **facts: Any) -> Path:
    """Write tokenizer.json and tokenizer_config.json into `folder`, and return it."""
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))
    return folder
