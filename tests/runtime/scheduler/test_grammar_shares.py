"""Several replicas share one pool of grammars."""

import numpy as np

from mem_cache.spec import PoolSizes
from runtime.messages import Grammar
from runtime.scheduler.grammar_shares import share_grammars
from tests.runtime.scheduler.test_loop import prompt_of
from tests.testing.fake_grammars import FakeGrammars
from tests.testing.joint_rig import JointRig
from tests.testing.token_runner import expected_output, ruled_output

AMPLE = PoolSizes(full_pages=200, swa_pages=200, states=60)


def test_each_replica_hears_of_its_own_grammars() -> None:
    grammars = FakeGrammars(50)
    rig = JointRig(AMPLE, 2, grammars=grammars)
    requests = [rig.send(prompt_of(k, 20), 4, grammar=Grammar("regex", "a")) for k in range(4)]
    rig.scheduler.turn()
    assert {rig.place(request) for request in requests} == {0, 1}
    grammars.fail(requests[3], "it is too large")
    grammars.instant = True
    rig.run()

    assert [(r.request_id, r.message) for r in rig.refusals()] == [(requests[3], "it is too large")]
    for k, request in enumerate(requests[:3]):
        assert rig.tokens(request) == expected_output(prompt_of(k, 20), 4, 50)
    assert not grammars.outputs
    rig.assert_conserved()


def test_masks_hold_in_every_replica_while_steps_overlap() -> None:
    grammars = FakeGrammars(50)
    grammars.allowed, grammars.instant = np.array([0x0F0F0F0F, 0x33333], dtype=np.int32), True
    rig = JointRig(AMPLE, 2, grammars=grammars, overlap=True)
    ruled = [rig.send(prompt_of(k, 20), 9, grammar=Grammar("regex", "a")) for k in range(4)]
    free = [rig.send(prompt_of(k, 20), 9) for k in range(10, 14)]
    rig.run()

    for k, request in enumerate(ruled):
        prompt = prompt_of(k, 20)
        expected = ruled_output(prompt, 9, 50, after=None, mask=grammars.allowed)
        assert rig.tokens(request) == expected
    for k, request in enumerate(free, start=10):
        assert rig.tokens(request) == expected_output(prompt_of(k, 20), 9, 50)
    assert not grammars.outputs
    assert grammars.untold == []
    rig.assert_conserved()


def test_one_replica_has_the_pool_itself() -> None:
    grammars = FakeGrammars(50)

    assert share_grammars(grammars, 1) == [grammars]
    assert share_grammars(None, 3) == [None, None, None]
