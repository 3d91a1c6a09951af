"""Where requests stand, from their arrival to their end."""

import random

import pytest

from mem_cache.spec import PoolSizes
from runtime.scheduler.request import Status
from tests.testing.scheduler_rig import Rig

pytestmark = pytest.mark.usefixtures("either_way")

TIGHT = PoolSizes(full_pages=14, swa_pages=40, states=16)


def check(rig: Rig) -> None:
    """Assert that each request stands in the one set that its status names."""
    sets = rig.replica.sets
    stands = {
        Status.WAITING: [*sets.waiting],
        Status.PREFILL: sets.prefills,
        Status.DECODE: sets.decoding.requests,
    }
    standing = [request for requests in stands.values() for request in requests]
    assert sorted(r.id for r in standing) == sorted(sets.by_id)
    for status, requests in stands.items():
        assert {r.status for r in requests} <= {status}
    assert sets.running_count == len(sets.running)
    assert all(request.row >= 0 for request in sets.running)
    assert all(request.row < 0 for request in sets.waiting)


@pytest.mark.parametrize("seed", range(4))
def test_each_request_stands_in_one_set(seed: int) -> None:
    draw = random.Random(seed)
    rig = Rig(TIGHT, rows=4, chunk=8)
    sent: list[int] = []
    for _ in range(120):
        if draw.random() < 0.2:
            prompt = draw.choices(range(40), k=draw.randint(1, 24))
            sent.append(rig.send(prompt, draw.choice([0, 1, 20, 40])))
        if draw.random() < 0.05:
            rig.abort(draw.choice([*sent, 99]))
        rig.scheduler.turn()
        check(rig)
    rig.run()

    check(rig)
    assert rig.replica.sets.waiting_uncached_tokens == 0
    assert not rig.replica.sets.by_id
    rig.assert_conserved()


def test_a_prefix_is_in_the_making_again_once_its_request_has_lost_its_row() -> None:
    rig = Rig(TIGHT, chunk=8)
    pending, request = rig.replica.sets.pending, rig.send(list(range(20)), 6)
    rig.scheduler.turn()
    rig.request(request).prefixes = prefixes = (3, 4)
    rig.turn_until(lambda: bool(rig.tokens(request)))

    rig.replica._retract(rig.at_rest(request))
    assert pending.match(prefixes) == 2

    rig.run()
    assert pending.match(prefixes) == 0
