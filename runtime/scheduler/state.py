"""The scheduler's answer to who asks how it is: counters and gauges, by replica and together."""

from collections.abc import Callable, Mapping, Sequence

from runtime.durations import Durations
from runtime.messages import Histogram, ReplicaState, State
from runtime.scheduler.replica import Replica
from runtime.scheduler.times import LoopTimes

__all__ = ["joint_gauges", "scheduler_state"]

# What is the same in all replicas.
_SAME = ("page_size", "swa_page_size", "cuda_graph")
# How the shares of pools end that requests hold; the pools of all replicas have one size.
_SHARE = "_usage"


def scheduler_state(
    call_id: int,
    replicas: Sequence[Replica],
    *,
    times: LoopTimes,
    clock: Callable[[], float],
    compilations: Durations | None,
    profiling: bool,
) -> State:
    """Return counters, gauges and how long loop and step have been going.

    compilations  of grammars; None: there are none
    """
    started = times.step_started_s  # read first: the loop goes on while another thread asks
    now = clock()
    each = [ReplicaState(dict(r.stats.counters), dict(r.stats.gauges)) for r in replicas]
    durations = _joint_durations([replica.durations() for replica in replicas])
    if compilations is not None:
        durations["grammar_compilation"] = compilations.told()
    shares = replicas[0].sets.shares  # of all replicas
    counters = summed([one.counters for one in each])
    return State(
        call_id,
        counters,
        joint_gauges([one.gauges for one in each], counters),
        step_age_s=now - started if started is not None else 0.0,
        loop_age_s=0.0 if started is not None else now - times.turned_s,
        namespaces=summed([replica.stats.namespace_tokens for replica in replicas]),
        durations=durations,
        profiling=profiling,
        shares=shares.told(),
        queue_s=shares.rate.seconds_for(sum(len(r.sets.waiting) for r in replicas), now),
        replicas=each if len(each) > 1 else [],
    )


def joint_gauges(
    gauges: Sequence[dict[str, float]], counters: Mapping[str, float]
) -> dict[str, float]:
    """Return the gauges of all replicas as those of one: amounts are added up, shares are not.

    counters  of all replicas
    """
    if len(gauges) == 1:
        return gauges[0]
    joint = summed(gauges)
    joint |= {name: gauges[0][name] for name in _SAME}
    joint |= {name: joint[name] / len(gauges) for name in joint if name.endswith(_SHARE)}
    prompt = counters["prompt_tokens"]
    joint["cache_hit_rate"] = counters["cached_tokens"] / prompt if prompt else 0.0
    return joint


def summed(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the sum of each value, in the order of their first appearance."""
    if len(values) == 1:
        return dict(values[0])
    total: dict[str, float] = {}
    for one in values:
        for name, value in one.items():
            total[name] = total.get(name, 0.0) + value
    return total


def _joint_durations(durations: Sequence[dict[str, Histogram]]) -> dict[str, Histogram]:
    """Return the histograms of all replicas as those of one; buckets are the same in all."""
    return {
        name: Histogram(
            first.bounds,
            [sum(counts) for counts in zip(*(one[name].counts for one in durations), strict=True)],
            sum(one[name].sum_s for one in durations),
        )
        for name, first in durations[0].items()
    }
