"""Lookup keys of a prompt: hashes of its whole blocks, and of beginnings of its last one.

The hashes of whole blocks are those of the servers' cache events. Servers also reuse beginnings of
blocks, which are in no event: for these there are *marks*, every few tokens, and a router
remembers to which replicas it sent each.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from runtime.kv_hashes import HASH_BYTES, chain_hashes, top_hash

__all__ = ["MARK_TOKENS", "PromptKeys"]

MARK_TOKENS = 4
_MARK = b"umbra kv mark"


@dataclass(frozen=True, slots=True)
class PromptKeys:
    """A prompt, ready to be looked up.

    tokens      [prompt tokens] int32
    block_size  tokens in a block
    top         hash that the first block follows
    blocks      hash of each whole block
    """

    tokens: np.ndarray
    block_size: int
    top: int
    blocks: list[int]

    @classmethod
    def of(cls, tokens: np.ndarray, *, block_size: int, namespace: str, key: bytes) -> "PromptKeys":
        """Return the keys of a prompt in a namespace; `key` is that of the servers' hashes."""
        whole = len(tokens) // block_size
        top = top_hash(namespace, key)
        blocks = chain_hashes(top, tokens[: whole * block_size].reshape(whole, block_size))
        return cls(tokens, block_size, top, blocks)

    def marks(self, block: int) -> Iterator[tuple[int, int]]:
        """Yield (tokens of the prompt up to it, hash) of each mark in a block, in order.

        A block that the prompt only begins has one at the prompt's end, too.
        """
        start = block * self.block_size
        inside = self.tokens[start : start + self.block_size].astype("<i4", copy=False)
        before = self.blocks[block - 1] if block else self.top
        hashed = hashlib.blake2b(
            before.to_bytes(HASH_BYTES, "big"), digest_size=HASH_BYTES, person=_MARK
        )
        for end in range(MARK_TOKENS, len(inside) + MARK_TOKENS, MARK_TOKENS):
            end = min(end, len(inside))
            hashed.update(inside[(end - 1) // MARK_TOKENS * MARK_TOKENS : end].tobytes())
            yield start + end, int.from_bytes(hashed.copy().digest(), "big")
