"""How many later arrivals get rows before a request that waits: a queue's length at most."""

import random
from collections.abc import Iterator

import pytest

from mem_cache.spec import PoolSizes, TreeSpec
from tests.testing.scheduler_rig import Rig

pytestmark = pytest.mark.usefixtures("either_way")

AMPLE = PoolSizes(full_pages=200, swa_pages=200, states=60)


def prompt_of(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(40), k=length)


def flood(rig: Rig, waits: int, prompts: Iterator[list[int]]) -> int:
    """Keep the queue full until a request that waits gets a row; return how many others have."""
    sent, queue = list[int](), rig.replica.sets.waiting
    while waits in queue or not sent:
        while len(queue) + len(rig.socket.inbox) < rig.settings.max_queued_requests:
            sent.append(rig.send(next(prompts), 1))
        rig.scheduler.turn()
    # In far less time than a request has patience for.
    assert rig.now_s < 1.0
    return sum(request not in queue for request in sent)


@pytest.mark.parametrize("rows", [1, 3])
def test_no_more_later_arrivals_than_may_wait_go_before_a_request(rows: int) -> None:
    rig = Rig(AMPLE, rows=rows, max_queued=6)
    shared = prompt_of(11, 64)
    rig.send(shared, 1)
    rig.run()
    for k in range(rows):
        rig.send(prompt_of(20 + k, 8), 3)
    rig.scheduler.turn()
    cold = rig.send(prompt_of(12, 30), 1)
    rig.scheduler.turn()

    ahead = flood(rig, cold, ([*shared, 41, k] for k in range(99)))

    # Longer prefixes go first as long as they may. Others start with it.
    assert 6 - rows < rig.request(cold).passed <= 6
    assert ahead < 6 + rows


def test_a_request_that_waits_for_a_prefix_keeps_a_row_once_enough_have_passed() -> None:
    rig = Rig(AMPLE, spec=TreeSpec(64, 16, 32), rows=2, chunk=40, max_queued=3)
    shared = prompt_of(13, 300)
    rig.send([*shared, 41], 1)
    late = rig.send([*shared, 42], 1)
    rig.scheduler.turn()

    assert flood(rig, late, (prompt_of(30 + k, 5) for k in range(99))) <= 3
    assert rig.request(late).matched >= 256
