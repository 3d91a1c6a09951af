"""When the cache is verified, and that a fault is found."""

import pytest

from mem_cache.errors import IntegrityError
from mem_cache.spec import PoolSizes
from runtime.scheduler.integrity import QUIET_S, IntegrityWatch
from tests.testing.scheduler_rig import Rig


@pytest.fixture
def rig() -> Rig:
    """A scheduler that has served a request, and whose counts are wrong since then."""
    rig = Rig(PoolSizes(full_pages=20, swa_pages=40, rings=10))
    rig.send(list(range(20)), 3)
    rig.run()
    rig.residency.full.alloc(1)
    return rig


def test_every_step_is_verified_where_that_is_asked(rig: Rig) -> None:
    watch = IntegrityWatch(rig.residency, every_step=True)

    with pytest.raises(IntegrityError):
        watch.stepped([])


def test_otherwise_it_is_verified_once_it_has_been_quiet_for_a_while(rig: Rig) -> None:
    watch = IntegrityWatch(rig.residency, every_step=False)
    watch.stepped([])
    watch.idle(100.0)
    watch.idle(100.0 + QUIET_S - 0.1)

    with pytest.raises(IntegrityError):
        watch.idle(100.0 + QUIET_S)


def test_a_step_in_between_starts_the_quiet_time_anew(rig: Rig) -> None:
    watch = IntegrityWatch(rig.residency, every_step=False)
    watch.stepped([])
    watch.idle(100.0)
    watch.stepped([])

    watch.idle(100.0 + QUIET_S)

    with pytest.raises(IntegrityError):
        watch.idle(100.0 + 2 * QUIET_S)


def test_a_quiet_time_is_verified_once_and_one_without_any_step_never(rig: Rig) -> None:
    fresh = IntegrityWatch(rig.residency, every_step=False)
    fresh.idle(0.0)
    fresh.idle(2 * QUIET_S)

    rig.residency.full.decref([_last_unit(rig)])
    watch = IntegrityWatch(rig.residency, every_step=False)
    watch.stepped([])
    watch.idle(0.0)
    watch.idle(QUIET_S)
    rig.residency.full.alloc(1)
    watch.idle(2 * QUIET_S)


def _last_unit(rig: Rig) -> int:
    """Return the page that the fixture took."""
    full = rig.residency.full
    held = set(rig.residency.cache.arrays.page("length").nonzero()[0].tolist())
    [page] = [p for p in range(1, full.capacity + 1) if full.references(p) and p not in held]
    return page


def test_an_idle_loop_gets_round_to_it() -> None:
    rig = Rig(PoolSizes(full_pages=20, swa_pages=40, rings=10))
    watch = rig.scheduler._watch = IntegrityWatch(rig.residency, every_step=False)
    rig.send(list(range(20)), 3)
    rig.run()
    rig.scheduler.turn()
    assert not watch._verified

    rig.now_s += QUIET_S
    rig.scheduler.turn()

    assert watch._verified
