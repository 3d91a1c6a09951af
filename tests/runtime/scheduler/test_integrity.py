"""When the cache is verified, and that a fault is found."""

from collections import Counter

import pytest

from mem_cache.errors import IntegrityError
from mem_cache.spec import PoolSizes
from runtime.scheduler.integrity import QUIET_S, IntegrityWatch
from tests.testing.scheduler_rig import Rig


@pytest.fixture
def rig() -> Rig:
    """A scheduler that has served a request, and whose counts are wrong since then."""
    rig = Rig(PoolSizes(full_pages=20, swa_pages=40, states=10))
    rig.send(list(range(20)), 3)
    rig.run()
    rig.residency.full.alloc(1)
    return rig


def _verify(watch: IntegrityWatch, now_s: float) -> None:
    """Be idle for as many turns as it takes."""
    for _ in range(100):
        watch.idle(now_s)
    assert watch._verified


def test_every_step_is_verified_where_that_is_asked(rig: Rig) -> None:
    watch = IntegrityWatch(rig.residency, every_step=True)

    with pytest.raises(IntegrityError):
        watch.stepped([])


def test_a_page_that_a_row_shares_is_protected_by_its_own_lock() -> None:
    rig = Rig(PoolSizes(full_pages=20, swa_pages=40, states=10))
    rig.send(list(range(20)), 3)
    rig.run()
    second = rig.send(list(range(30)), 9)
    rig.scheduler.turn()
    request = rig.request(second)
    watch = IntegrityWatch(rig.residency, every_step=True)
    watch.stepped([request])
    lock = request.holding.lock
    assert lock is not None
    assert request.holding.shared_pages >= 2

    lock.node = int(rig.residency.cache.arrays.page("parent")[lock.node])
    lock.node = int(rig.residency.cache.arrays.page("parent")[lock.node])

    with pytest.raises(IntegrityError, match="does not protect"):
        watch.stepped([request])


def test_otherwise_it_is_verified_once_it_has_been_quiet_for_a_while(rig: Rig) -> None:
    watch = IntegrityWatch(rig.residency, every_step=False)
    watch.stepped([])
    watch.idle(100.0)
    watch.idle(100.0 + QUIET_S - 0.1)
    assert watch._parts is None

    with pytest.raises(IntegrityError):
        _verify(watch, 100.0 + QUIET_S)


def test_a_step_in_between_starts_the_quiet_time_anew(rig: Rig) -> None:
    watch = IntegrityWatch(rig.residency, every_step=False)
    watch.stepped([])
    watch.idle(100.0)
    watch.stepped([])

    watch.idle(100.0 + QUIET_S)
    assert watch._parts is None

    with pytest.raises(IntegrityError):
        _verify(watch, 100.0 + 2 * QUIET_S)


def test_a_quiet_time_is_verified_once_and_one_without_any_step_never(rig: Rig) -> None:
    fresh = IntegrityWatch(rig.residency, every_step=False)
    fresh.idle(0.0)
    fresh.idle(2 * QUIET_S)

    rig.residency.full.decref([_last_unit(rig)])
    watch = IntegrityWatch(rig.residency, every_step=False)
    watch.stepped([])
    watch.idle(0.0)
    _verify(watch, QUIET_S)
    rig.residency.full.alloc(1)
    _verify(watch, 2 * QUIET_S)


def test_what_is_verified_by_half_is_verified_anew_after_a_change(rig: Rig) -> None:
    watch = IntegrityWatch(rig.residency, every_step=False)
    watch.stepped([])
    watch.idle(0.0)
    watch.idle(QUIET_S)
    assert watch._parts is not None

    watch.changed()
    rig.residency.full.decref([_last_unit(rig)])
    rig.send(list(range(100, 120)), 3)
    rig.run()

    watch.idle(2 * QUIET_S)
    assert watch._parts is None
    _verify(watch, 3 * QUIET_S)


def test_a_large_tree_is_verified_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mem_cache.tree.integrity.STEP_PAGES", 4)
    rig = Rig(PoolSizes(full_pages=40, swa_pages=40, states=10))
    for first in range(0, 2000, 100):
        rig.send([first, *range(7)], 3)
        rig.run()

    assert rig.residency.cache.tree_pages >= 20
    empty: Counter[int] = Counter()
    parts = list(rig.residency.cache.check_in_steps(full=empty, swa=empty, states=empty))
    assert len(parts) >= 3 * 20 // 4


def _last_unit(rig: Rig) -> int:
    """Return the page that the fixture took."""
    full = rig.residency.full
    held = set(rig.residency.cache.arrays.unit.tolist())
    [page] = [p for p in range(1, full.capacity + 1) if full.references(p) and p not in held]
    return page


def test_an_idle_loop_gets_round_to_it() -> None:
    rig = Rig(PoolSizes(full_pages=20, swa_pages=40, states=10))
    watch = rig.replica._watch = IntegrityWatch(rig.residency, every_step=False)
    rig.send(list(range(20)), 3)
    rig.run()
    rig.scheduler.turn()
    assert not watch._verified

    rig.now_s += QUIET_S
    for _ in range(20):
        rig.scheduler.turn()

    assert watch._verified
