"""What a scheduler of several replicas says of itself."""

import pytest

from mem_cache.spec import PoolSizes
from runtime.messages import GetState, State
from runtime.scheduler.state import scheduler_state
from runtime.scheduler.times import LoopTimes
from tests.runtime.scheduler.test_loop import prompt_of
from tests.testing.joint_rig import JointRig
from tests.testing.scheduler_rig import Rig

AMPLE = PoolSizes(full_pages=200, swa_pages=200, states=60)


def test_counters_and_amounts_are_sums_and_shares_are_of_all_units() -> None:
    rig = JointRig(AMPLE, 2)
    for seed in range(4):
        rig.send(prompt_of(seed, 20), 8)
    rig.turn_until(lambda: all(len(r.sets.decoding) == 2 for r in rig.replicas))
    late = rig.send(prompt_of(0, 20), 8)
    rig.turn_until(lambda: bool(rig.outputs(late)))
    rig.socket.inbox.append(GetState(3))
    rig.scheduler.turn()

    state = next(m for m in rig.socket.outbox if isinstance(m, State))
    one, other = state.replicas
    assert state.gauges["running"] == one.gauges["running"] + other.gauges["running"] == 5
    assert state.counters["prompt_tokens"] == 100
    assert state.gauges["full_pages"] == 400
    assert state.gauges["page_size"] == one.gauges["page_size"]
    mean = (one.gauges["full_usage"] + other.gauges["full_usage"]) / 2
    assert state.gauges["full_usage"] == pytest.approx(mean)
    assert state.gauges["cache_hit_rate"] == state.counters["cached_tokens"] / 100 > 0
    assert state.durations["eviction"].counts == [0] * len(state.durations["eviction"].counts)


def test_one_replica_tells_no_parts() -> None:
    assert Rig(AMPLE).scheduler.state().replicas == []


@pytest.mark.parametrize(("started_s", "ages"), [(None, (0.0, 3.0)), (1.0, (4.0, 0.0))])
def test_either_the_step_or_the_loop_has_an_age(
    started_s: float | None, ages: tuple[float, float]
) -> None:
    state = scheduler_state(
        1,
        Rig(AMPLE).scheduler.replicas,
        times=LoopTimes(turned_s=2.0, step_started_s=started_s),
        clock=lambda: 5.0,
        compilations=None,
        profiling=False,
    )

    assert (state.step_age_s, state.loop_age_s) == ages
