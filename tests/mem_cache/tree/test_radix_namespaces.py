"""Namespaces: nothing is shared between them, each keeps to its quota, empty ones are forgotten."""

from mem_cache.spec import TreeSpec
from tests.testing.dictionary_model import Rig


def test_nothing_matches_across_namespaces(rig: Rig) -> None:
    rig.complete([1] * 8, 8, namespace="a")
    rig.complete([1] * 5, namespace="b")

    assert rig.match([1] * 9).full_tokens == 0
    assert rig.match([1] * 9, namespace="b").start == 0
    assert rig.cache.tokens_by_namespace() == {"a": 8, "b": 5}

    rig.shrink("a", 0)
    assert rig.match([1] * 9, namespace="a").full_tokens == 0
    assert rig.match([1] * 9, namespace="b").full_tokens == 5


def test_namespaces_that_hold_nothing_make_room_for_others(rig: Rig) -> None:
    kept = rig.begin([5] * 6, namespace="kept")
    rig.publish(kept)
    lock = rig.cache.lock(rig.match([1, 2], namespace="locked"))

    for number in range(500):
        rig.complete([1] * 5, namespace=f"n{number}")
        rig.evict_full(rig.full.capacity - 2)

    assert len(rig.cache.arrays.roots) == 64
    assert {"kept", "locked"} <= rig.cache.roots.keys()
    rig.cache.unlock(lock)
    rig.check()


def test_what_holds_nothing_any_more_is_not_listed(rig: Rig) -> None:
    rig.complete([1] * 5, namespace="a")
    rig.complete([2] * 5, namespace="b")
    rig.shrink("a", 0)

    assert "a" in rig.cache.roots
    assert rig.cache.tokens_by_namespace() == {"b": 5}


def test_any_number_of_namespaces_can_hold_something() -> None:
    rig = Rig(TreeSpec(page_size=4, swa_page_size=2, window=4), full=300, swa=9, states=3)
    for number in range(300):
        rig.complete([1, 2, 3], namespace=f"n{number}")

    for number in range(300):
        assert rig.match([1, 2, 3, 4], namespace=f"n{number}").full_tokens == 3
    rig.check()


def test_a_namespace_shrinks_to_its_quota_oldest_first_and_others_keep_all(rig: Rig) -> None:
    rig.complete([1] * 8, namespace="a")
    rig.complete([2] * 10, namespace="a")
    rig.complete([3] * 8, namespace="b")

    assert rig.shrink("a", 18)
    assert rig.shrink("a", 13)

    assert rig.cache.tokens_by_namespace() == {"a": 10, "b": 8}
    assert rig.match([2] * 11, namespace="a").full_tokens == 10
    assert rig.shrink("nobody", 0)


def test_a_namespace_keeps_what_is_locked_whatever_its_quota(rig: Rig) -> None:
    rig.complete([1] * 8, namespace="a")
    rig.complete([2] * 8, namespace="a")
    row = rig.begin([1] * 6, namespace="a")

    assert not rig.shrink("a", 3)

    assert rig.cache.tokens_by_namespace() == {"a": 8}
    rig.finish(row)
    assert rig.shrink("a", 3)


def test_after_a_reset_there_may_be_as_many_namespaces_as_before() -> None:
    rig = Rig(TreeSpec(page_size=4, swa_page_size=2, window=4), full=100, swa=9, states=3)
    rig.complete([1, 2, 3], namespace="before")
    rig.reset()
    for number in range(65):
        rig.complete([1, 2, 3], namespace=f"n{number}")

    assert rig.cache.tokens_by_namespace() == {f"n{number}": 3 for number in range(65)}
    rig.check()


def test_a_match_of_nothing_is_locked_in_its_own_namespace_though_that_was_forgotten(
    rig: Rig,
) -> None:
    rig.complete([1] * 5, namespace="a")
    rig.shrink("a", 0)
    match = rig.match([1] * 5, namespace="a")
    for number in range(64):
        rig.complete([2] * 5, namespace=f"n{number}")
        rig.evict_full(rig.full.capacity)
    assert "a" not in rig.cache.roots

    lock = rig.cache.lock(match)

    assert lock.node == -1 - rig.cache.roots["a"]
    rig.cache.unlock(lock)
