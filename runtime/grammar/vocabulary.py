"""The bytes that each token id stands for, as a grammar sees them."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from runtime.errors import GrammarError

# No UTF-8 text has this byte: what begins with it matches nothing but its own id.
NO_TEXT = b"\xff"


def token_bytes(tokenizer: Tokenizer, vocab_size: int) -> list[bytes]:
    """Return the bytes of each id below `vocab_size`.

    Control tokens get bytes that are no text: a grammar reaches them by id only, and no text that
    it allows is ever spelt with them. Ids without a token get none.
    Raises GrammarError for a tokenizer that is not byte-level.
    """
    if not _is_byte_level(json.loads(tokenizer.to_str())):
        raise GrammarError("grammars need a byte-level tokenizer, which this checkpoint has not")
    spelling = _byte_of_letter()
    added = tokenizer.get_added_tokens_decoder()
    table = [b""] * vocab_size
    for text, token_id in tokenizer.get_vocab().items():
        if token_id >= vocab_size or token_id in added:
            continue
        if not all(letter in spelling for letter in text):
            raise GrammarError(f"token {token_id} is not spelt in the byte-level alphabet")
        table[token_id] = bytes(spelling[letter] for letter in text)
    for token_id, token in added.items():
        if token_id < vocab_size:
            mark = NO_TEXT + token_id.to_bytes(4, "little")
            table[token_id] = mark if token.special else token.content.encode()
    return table


def load_token_bytes(folder: Path, vocab_size: int) -> list[bytes]:
    """Return `token_bytes` of the tokenizer.json in `folder`. Raises GrammarError."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise GrammarError("grammars need a tokenizer, and this checkpoint has no tokenizer.json")
    return token_bytes(Tokenizer.from_file(str(path)), vocab_size)


def _is_byte_level(facts: dict[str, Any]) -> bool:
    decoder: dict[str, Any] = facts.get("decoder") or {}
    parts: list[dict[str, Any]] = [decoder, *decoder.get("decoders", [])]
    return any(part.get("type") == "ByteLevel" for part in parts)


def _byte_of_letter() -> dict[str, int]:
    """Return the byte behind each letter of the byte-level alphabet.

    Printable bytes stand for themselves, the others, in order, for the letters from U+0100 on.
    Source: the byte-level BPE of GPT-2 (Radford et al. 2019).
    """
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in own]
    table = {chr(byte): byte for byte in own}
    table.update({chr(0x100 + k): byte for k, byte in enumerate(others)})
    return table
