"""Rows go to the share with the least service; nobody starves, and idle time earns nothing."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from mem_cache.spec import PoolSizes
from runtime.scheduler.settings import SchedulerSettings
from runtime.scheduler.shares import FairShares
from runtime.share import Share, ShareState
from tests.testing.joint_rig import JointRig
from tests.testing.scheduler_rig import Rig

AMPLE = PoolSizes(full_pages=400, swa_pages=400, states=100)
CROWD, LONE = Share("crowd"), Share("lone")


def unchecked(rows: int, *, policy: str = "lpm", aging_s: float = 0.0) -> Rig:
    """Return a rig for long runs, whose cache is not verified after each step."""

    def adjust(settings: SchedulerSettings) -> SchedulerSettings:
        return replace(settings, check_every_step=False, priority_aging_s=aging_s)

    return Rig(AMPLE, rows=rows, policy=policy, adjust=adjust)


class Clients:
    """Clients of one share, each of which asks again when it has its answer.

    tokens  of all their answers so far
    """

    def __init__(self, rig: Rig, share: Share, count: int, *, new: int = 10, priority: int = 0):
        self._rig, self._share, self._new, self._priority = rig, share, new, priority
        self._draw = random.Random(share.name)
        self.running = [self._ask() for _ in range(count)]
        self.tokens = 0

    def _ask(self) -> int:
        prompt = self._draw.choices(range(40), k=12)
        return self._rig.send(prompt, self._new, share=self._share, priority=self._priority)

    def ask_again(self) -> None:
        """Have those that are done ask again."""
        known = self._rig.scheduler._by_id
        for k, request in enumerate(self.running):
            if request not in known and self._rig.tokens(request):
                self.tokens += self._new
                self.running[k] = self._ask()


def turn(rig: Rig, *clients: Clients, step_s: float = 0.05) -> None:
    """Take a turn, which lasts `step_s`."""
    rig.scheduler.turn()
    for one in clients:
        one.ask_again()
    rig.socket.outbox = rig.socket.outbox[-60:]
    rig.now_s += step_s


def turns_until_done(rig: Rig, request: int, *clients: Clients) -> int:
    """Take turns until a request has ended; return how many."""
    for count in range(1, 2000):
        turn(rig, *clients)
        if request not in rig.scheduler._by_id:
            return count
    raise AssertionError("not done")


@pytest.mark.parametrize("policy", ["lpm", "fcfs"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_lone_small_request_waits_for_one_request_of_a_crowd_at_most(
    policy: str, rows: int
) -> None:
    alone = unchecked(rows, policy=policy)
    one = turns_until_done(alone, alone.send(list(range(12)), 10, share=CROWD))
    small = turns_until_done(alone, alone.send([1, 2, 3], 2, share=LONE))

    def beside_a_crowd(share: Share) -> int:
        rig = unchecked(rows, policy=policy)
        crowd = Clients(rig, CROWD, 40)
        for _ in range(40):
            turn(rig, crowd)
        return turns_until_done(rig, rig.send([1, 2, 3], 2, share=share), crowd)

    # Prefills and decode steps of others take turns with its own.
    assert beside_a_crowd(LONE) <= 2 * (one + small)
    assert beside_a_crowd(CROWD) > 3 * (one + small)


def test_shares_get_tokens_by_their_weights() -> None:
    rig = unchecked(4)
    light = Clients(rig, Share("light"), 12)
    heavy = Clients(rig, Share("heavy", weight=3.0), 12)
    for _ in range(400):
        turn(rig, light, heavy)

    assert light.tokens > 100
    assert heavy.tokens / light.tokens == pytest.approx(3.0, rel=0.2)


def test_tokens_that_are_computed_and_sampled_count_and_cached_ones_do_not() -> None:
    rig = Rig(AMPLE)
    prompt = list(range(32))
    for computed in (32, 1):
        before = rig.replica.sets.shares.service(LONE)
        rig.send(prompt, 7, share=LONE)
        rig.run()
        assert rig.replica.sets.shares.service(LONE) - before == computed + 7


def test_idle_time_earns_no_credit_and_debt_is_kept() -> None:
    shares = FairShares()
    for _ in range(100):
        shares.enter(CROWD)
        shares.leave(CROWD)
        shares.start(CROWD, 50)
        shares.stop(CROWD)
    shares.enter(LONE)

    # One turn ahead: the crowd's last request.
    assert shares.service(CROWD) - shares.service(LONE) == 50
    shares.leave(LONE)
    shares.charge(LONE, 500)
    shares.enter(LONE)
    assert shares.service(LONE) - shares.service(CROWD) == 450


def test_who_waited_behind_a_higher_priority_is_not_ahead_of_newcomers() -> None:
    shares = FairShares()
    shares.enter(Share("starved"))
    for _ in range(100):
        shares.enter(CROWD)
        shares.leave(CROWD)
        shares.start(CROWD, 50)

    shares.enter(LONE)

    assert shares.service(LONE) == shares.service(Share("starved"))


def test_a_share_has_no_more_rows_than_its_limit() -> None:
    rig = Rig(AMPLE, rows=4)
    limited = [rig.send([k, 1, 2], 6, share=Share("a", max_running=2)) for k in range(5)]
    other = rig.send([9, 9, 9], 6, share=LONE)
    most = Counter[str]()
    while rig.socket.inbox or rig.busy:
        rig.scheduler.turn()
        for name, state in rig.replica.sets.shares.told().items():
            most[name] = max(most[name], state.running)

    assert most == {"a": 2, "lone": 1}
    assert all(len(rig.tokens(r)) == 6 for r in (*limited, other))
    rig.assert_conserved()


def test_a_row_given_up_in_one_replica_lets_a_share_start_in_another() -> None:
    rig = JointRig(AMPLE, 2)
    share = Share("a", max_running=1)
    requests = [rig.send([k, 1, 2, 3], 6, share=share) for k in range(4)]
    rig.run()

    assert all(len(rig.tokens(request)) == 6 for request in requests)
    assert all(rig.computed)
    rig.assert_conserved()


def test_counts_are_back_to_nothing_when_all_have_ended_in_whatever_way() -> None:
    rig = Rig(PoolSizes(12, 60, 12), rows=3)
    draw = random.Random(5)
    ids = [rig.send(draw.choices(range(40), k=20), 30, share=Share(f"@{k % 4}")) for k in range(12)]
    for k in range(40):
        rig.scheduler.turn()
        if k % 5 == 0:
            rig.abort(draw.choice(ids))
    rig.run()

    assert rig.replica.stats.counters["retracted_requests"]
    [state] = rig.replica.sets.shares.told().items()
    assert state == ("@", ShareState(0, 0, state[1].started, state[1].wait_s))
    rig.assert_conserved()


def test_who_loses_its_row_has_waited_for_its_first_one_only() -> None:
    rig = Rig(AMPLE, chunk=8)
    request = rig.send(list(range(30)), 6, share=LONE)
    rig.turn_until(lambda: bool(rig.tokens(request)))
    rig.replica._retract(rig.at_rest(request))
    rig.run()

    assert rig.replica.sets.shares.told()[LONE.name].started == 1
    rig.assert_conserved()


def test_no_number_of_addresses_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.scheduler.shares.MOST_REMEMBERED", 20)
    shares = FairShares()
    for k in range(500):
        share = Share(f"@{k}")
        shares.enter(share)
        shares.leave(share)
        shares.start(share, k)
        shares.stop(share)
        assert len(shares._service) <= 21
        deepest_in_debt = {f"@{j}" for j in range(max(1, k - 9), k + 1)}
        assert deepest_in_debt <= shares._service.keys() | {"@0"}


@pytest.mark.parametrize("aging_s", [1.0, 0.0])
def test_priority_0_beside_a_stream_of_priority_5_runs_after_5_steps_of_ageing(
    aging_s: float,
) -> None:
    rig = unchecked(2, aging_s=aging_s)
    stream = Clients(rig, CROWD, 24, priority=5)
    for _ in range(20):
        turn(rig, stream)
    low, began_s = rig.send([1, 2, 3], 2, share=CROWD), rig.now_s
    while rig.now_s - began_s < 12.0:
        turn(rig, stream)
        if low not in rig.scheduler._by_id:
            break
    waited_s = rig.now_s - began_s

    if aging_s:
        # A request of the stream takes 23 turns.
        assert 4.0 < waited_s <= 5 * aging_s + 1.5
    else:
        assert waited_s >= 12.0
