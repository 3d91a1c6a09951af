"""Content hashes of the blocks that cache events tell of.

A hash covers the hash before it and the block's tokens, so it stands for everything up to there.
Without a namespace it is the same in every process. The names of namespaces stem from keys and
salts: they enter under a key, so that nobody without it can try out guesses on published hashes.
"""

import hashlib

import numpy as np

__all__ = ["HASH_BYTES", "chain_hashes", "top_hash"]

HASH_BYTES = 8
_BLOCK, _TOP = b"umbra kv block", b"umbra kv top"


def top_hash(namespace: str, key: bytes) -> int:
    """Return what the first block of a namespace follows, 0 to 2^64 - 1.

    key  32 bytes or fewer; without effect on the namespace ""
    """
    digest = hashlib.blake2b(
        namespace.encode(), digest_size=HASH_BYTES, key=key if namespace else b"", person=_TOP
    ).digest()
    return int.from_bytes(digest, "big")


def chain_hashes(before: int, tokens: np.ndarray) -> list[int]:
    """Return the hash of each block of a run: BLAKE2b of the one before it and its own tokens.

    before  hash of the block before the run, or of the top of a namespace
    tokens  [blocks, block_size] int32, hashed as little-endian bytes
    """
    hashes: list[int] = []
    digest = before.to_bytes(HASH_BYTES, "big")
    for block in tokens.astype("<i4", copy=False):
        hashed = hashlib.blake2b(digest, digest_size=HASH_BYTES, person=_BLOCK)
        hashed.update(block.tobytes())
        digest = hashed.digest()
        hashes.append(int.from_bytes(digest, "big"))
    return hashes
