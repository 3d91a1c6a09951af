"""Children are found by their first page, exactly or by the longest common run."""

import random

import numpy as np
import pytest

from mem_cache.children import Children, common_run


def _key(*tokens: int) -> bytes:
    return np.array(tokens, np.int32).tobytes()


def _filled(*keys: tuple[int, ...]) -> Children[tuple[int, ...], str]:
    children: Children[tuple[int, ...], str] = Children()
    for key in keys:
        children.add(_key(*key), key)
    return children


@pytest.mark.parametrize(
    ("left", "right", "run"),
    [([], [1], 0), ([1], [2], 0), ([1, 2], [1, 3], 1), ([1, 2], [1, 2, 3], 2), ([4, 5], [4, 5], 2)],
)
def test_common_run_counts_equal_tokens_from_the_start(
    left: list[int], right: list[int], run: int
) -> None:
    assert common_run(np.array(left, np.int32), np.array(right, np.int32)) == run
    assert common_run(np.array(right, np.int32), np.array(left, np.int32)) == run


def test_without_children_nothing_is_near() -> None:
    assert _filled().nearest(_key(1)) == (None, 0)
    assert _filled((2, 3)).nearest(_key(1, 3)) == (None, 0)


def test_an_exact_key_is_found_among_near_ones() -> None:
    children = _filled((1, 2, 3), (1, 2, 4), (1, 2, 5))

    assert children.nearest(_key(1, 2, 4)) == ((1, 2, 4), 3)


def test_a_shorter_query_finds_a_child_that_begins_with_it() -> None:
    children = _filled((1, 2, 3), (1, 5, 4))

    assert children.nearest(_key(1, 5)) == ((1, 5, 4), 2)


def test_a_shorter_child_that_begins_the_query_is_found() -> None:
    children = _filled((1, 2, 3), (1, 5))

    assert children.nearest(_key(1, 5, 4)) == ((1, 5), 2)


@pytest.mark.parametrize("tokens", [2, 300, 70000])
def test_the_longest_run_is_found_for_any_key_and_after_any_removal(tokens: int) -> None:
    # More keys than one sorted block holds; large tokens, whose bytes are not in token order.
    random_ = random.Random(tokens)
    keys = {tuple(random_.choices(range(tokens - 2, tokens + 3), k=6)) for _ in range(1500)}
    children = _filled(*keys)
    for key in random_.sample(sorted(keys), 700):
        keys.remove(key)
        children.remove(_key(*key))

    assert len(children) == len(keys)
    assert set(children) == keys
    assert list(children.sorted_keys()) == sorted(_key(*key) for key in keys)
    for _ in range(200):
        query = tuple(random_.choices(range(tokens - 2, tokens + 4), k=6))
        longest = max(_run(query, key) for key in keys)
        found, run = children.nearest(_key(*query))
        assert run == longest
        assert found is None or _run(query, found) == longest


def _run(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    differs = [i for i, pair in enumerate(zip(left, right, strict=True)) if len(set(pair)) > 1]
    return differs[0] if differs else len(left)


def test_a_child_can_be_replaced_under_its_key() -> None:
    children = _filled((1, 2), (3, 4))

    children.replace(_key(1, 2), (9, 9))

    assert children.nearest(_key(1, 2)) == ((9, 9), 2)
    assert len(children) == 2


def test_the_deepest_head_is_the_longest_prefix_that_has_a_point() -> None:
    children = _filled((1, 2, 3, 4))
    for tokens in ((1,), (1, 2, 3), (1, 7, 3)):
        children.add_head(_key(*tokens), str(tokens))

    assert children.deepest_head(_key(1, 2, 3, 4)) == "(1, 2, 3)"
    assert children.deepest_head(_key(1, 2, 3)) == "(1, 2, 3)"
    assert children.deepest_head(_key(1, 2)) == "(1,)"
    assert children.deepest_head(_key(1, 7, 4)) == "(1,)"
    assert children.deepest_head(_key(2)) is None
    assert children.head(_key(1, 7, 3)) == "(1, 7, 3)"
    assert children.head(_key(1, 7)) is None


def test_a_removed_head_is_forgotten_and_others_of_its_length_stay() -> None:
    children = _filled()
    for tokens in ((1, 2), (1, 3), (1,)):
        children.add_head(_key(*tokens), str(tokens))

    children.remove_head(_key(1, 2))

    assert children.deepest_head(_key(1, 2)) == "(1,)"
    assert children.deepest_head(_key(1, 3)) == "(1, 3)"
    children.remove_head(_key(1, 3))
    assert children.deepest_head(_key(1, 3)) == "(1,)"
