"""Hashes are chained, and those of a namespace need the key."""

import numpy as np

from runtime.kv_hashes import chain_hashes, top_hash

TOKENS = np.arange(12, dtype=np.int32).reshape(3, 4)


def test_a_hash_stands_for_all_that_precedes_it() -> None:
    hashes = chain_hashes(7, TOKENS)

    assert chain_hashes(hashes[0], TOKENS[1:]) == hashes[1:]
    assert chain_hashes(8, TOKENS)[2] != hashes[2]
    changed = TOKENS.copy()
    changed[0, 0] = 99
    assert set(chain_hashes(7, changed)).isdisjoint(hashes)


def test_a_namespace_is_hashed_by_the_key_and_no_namespace_without_it() -> None:
    assert top_hash("", b"a" * 32) == top_hash("", b"b" * 32)
    assert top_hash("salt", b"a" * 32) == top_hash("salt", b"a" * 32)
    tops = [top_hash(*pair) for pair in (("", b"a"), ("salt", b"a"), ("salt", b"b"), ("s", b"a"))]
    assert len(set(tops)) == 4
