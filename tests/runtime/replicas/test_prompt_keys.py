"""Blocks are hashed as servers do, and marks agree where prompts begin alike."""

import numpy as np

from runtime.kv_hashes import chain_hashes, top_hash
from runtime.replicas.prompt_keys import MARK_TOKENS, PromptKeys

KEY = b"k" * 32


def keys(tokens: np.ndarray, namespace: str = "") -> PromptKeys:
    return PromptKeys.of(tokens, block_size=16, namespace=namespace, key=KEY)


def test_blocks_have_the_hashes_of_events() -> None:
    tokens = np.arange(40, dtype=np.int32)

    found = keys(tokens, "salt")

    assert found.blocks == chain_hashes(top_hash("salt", KEY), tokens[:32].reshape(2, 16))
    assert keys(tokens).blocks != found.blocks
    assert keys(tokens[:15]).blocks == []


def test_marks_agree_up_to_where_prompts_part() -> None:
    tokens = np.arange(30, dtype=np.int32)
    other = tokens.copy()
    other[16 + 2 * MARK_TOKENS + 1] = 99

    first, second = (list(keys(one).marks(1)) for one in (tokens, other))

    assert [end for end, _ in first] == [16 + MARK_TOKENS * k for k in (1, 2, 3)] + [30]
    assert [a == b for a, b in zip(first, second, strict=True)] == [True, True, False, False]
    assert list(keys(tokens[:24]).marks(1)) == first[:2]


def test_marks_of_other_blocks_and_namespaces_differ() -> None:
    same = np.ones(48, dtype=np.int32)
    found = [{mark for _, mark in keys(same).marks(block)} for block in (0, 1, 2)]
    salted = {mark for _, mark in keys(same, "salt").marks(0)}

    assert not found[0] & found[1]
    assert not found[1] & found[2]
    assert not found[0] & salted
    assert list(keys(same).marks(3)) == []
