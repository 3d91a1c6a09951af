"""Namespaces are told by digest and size, the largest first."""

import hashlib

from mem_cache.spec import PoolSizes
from runtime.scheduler.namespaces import digest, largest_namespaces
from tests.testing.scheduler_rig import Rig

AMPLE = PoolSizes(full_pages=100, swa_pages=100, states=30)


def test_a_digest_is_stable_and_tells_nothing_of_the_name() -> None:
    assert digest("tenant") == digest("tenant") != digest("tenant2")
    assert "tenant" not in digest("tenant")
    assert len(digest("")) == 8
    assert digest("tenant") != hashlib.blake2b(b"tenant", digest_size=4).hexdigest()


def test_the_largest_namespaces_are_told_with_their_tokens() -> None:
    rig = Rig(AMPLE)
    for name, length in (("a", 20), ("b", 40), ("c", 10)):
        rig.send(list(range(length)), 1, namespace=name)
    rig.run()

    largest = largest_namespaces(rig.residency.cache, 2)

    assert list(largest.items()) == [(digest("b"), 40), (digest("a"), 20)]


def test_the_state_carries_them() -> None:
    rig = Rig(AMPLE)
    rig.send(list(range(20)), 1, namespace="a")
    rig.run()
    rig.replica.stats.update(running=0, waiting=0)

    assert set(rig.scheduler.state().namespaces) <= {digest("a")}
