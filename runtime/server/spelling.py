"""How single tokens are shown in log-probabilities: their bytes, and their bytes as text."""

import re
from functools import lru_cache

from runtime.tokenizer.tokenizer import TextTokenizer

# JSON has no infinity; OpenAI writes this for a probability of zero.
LEAST_LOGPROB = -9999.0

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Speller:
    """Spells token ids; an id that the tokenizer does not know has no bytes."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        """Read the decoder's kind from the tokenizer once."""
        self._backend = tokenizer.backend
        added = self._backend.get_added_tokens_decoder() if self._backend else {}
        self._added = {i: token.content.encode() for i, token in added.items()}
        self._byte_level = self._backend is not None and "ByteLevel" in repr(self._backend.decoder)
        self.bytes_of = lru_cache(maxsize=1 << 16)(self._bytes_of)

    def text(self, token_id: int) -> str:
        """Return the token's text; bytes that are no UTF-8 by themselves become U+FFFD."""
        return self.bytes_of(token_id).decode("utf-8", "replace")

    def label(self, token_id: int) -> str:
        """Return a text that differs from token to token, in OpenAI's way.

        Bytes that are no UTF-8 by themselves are written out: `bytes:\\xe2\\x80`.
        """
        data = self.bytes_of(token_id)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def _bytes_of(self, token_id: int) -> bytes:
        """Return the bytes the token adds to a text."""
        if token_id in self._added:
            return self._added[token_id]
        token = self._backend.id_to_token(token_id) if self._backend else None
        if token is None:
            return b""
        if self._byte_level:
            table = _byte_of_char()
            return b"".join(
                bytes([table[char]]) if char in table else char.encode() for char in token
            )
        fallback = _BYTE_FALLBACK.fullmatch(token)
        if fallback:
            return bytes([int(fallback[1], 16)])
        return token.replace("\u2581", " ").encode()


@lru_cache(maxsize=1)
def _byte_of_char() -> dict[str, int]:
    """Return the byte each character of a byte-level vocabulary stands for.

    Printable Latin-1 bytes stand for themselves, the others for U+0100 and up, in order.
    Source: GPT-2's published vocabulary.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in set(plain)]
    table.update({chr(0x100 + k): byte for k, byte in enumerate(others)})
    return table
