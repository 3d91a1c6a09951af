"""Random lives: everything is right in all of them, and each can be lived again."""

from pathlib import Path

import msgspec
import pytest

from tests.simulation.draw import Drawn
from tests.simulation.running import live_script, live_seed
from tests.simulation.script import (
    ApiStall,
    Arrive,
    SchedulerDies,
    Script,
    WorldSpec,
    read_script,
)

STEPS = 250


@pytest.mark.parametrize("seed", range(8))
def test_nothing_goes_wrong_in_a_random_life(seed: int) -> None:
    outcome = live_seed(seed, STEPS)

    assert outcome.fault is None, f"python -m tests.simulation --replay {seed} --steps {STEPS}"
    assert outcome.steps >= STEPS


def test_a_point_is_not_hung_before_its_step_is_seen_to_be_finite() -> None:
    """Others have published the pages before it; the step in flight, which makes it, fails."""
    assert live_seed(3981, 570).fault is None


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 20))
def test_nothing_goes_wrong_in_a_million_steps(first: int) -> None:
    for seed in range(first, first + 20):
        outcome = live_seed(seed, 1000)
        assert outcome.fault is None, f"python -m tests.simulation --replay {seed} --steps 1000"
        assert outcome.steps >= 1000


def test_a_life_lived_again_takes_as_many_steps(tmp_path: Path) -> None:
    once = live_seed(5, 60)
    (tmp_path / "script").write_text(once.script.lines(), "utf-8")

    again = live_script(read_script(tmp_path / "script"))

    assert again.fault is None
    assert again.script == once.script
    assert again.steps == once.steps


def test_time_passes_while_the_scheduler_is_gone_and_a_timer_waits_for_a_stalled_process() -> None:
    call = Arrive(at=1.0, key=1, prompt="a" * 20, new=30, ignore_eos=True, reader="slow")
    events = [
        msgspec.structs.replace(call, patience_s=0.01),
        SchedulerDies(at=1.02, seconds=0.1),
        ApiStall(at=1.021, seconds=0.05),
        msgspec.structs.replace(call, at=1.3, key=2),
    ]

    outcome = live_script(Script(0, WorldSpec(), events))

    assert outcome.fault is None
    assert outcome.counted["finished_requests"] == 1


def test_seeds_draw_all_there_is() -> None:
    worlds = [Drawn(seed).world for seed in range(60)]
    kinds: set[str] = set()
    for seed in range(6):
        kinds |= {type(event).__name__ for event, _ in zip(Drawn(seed), range(300), strict=False)}

    assert len(kinds) == 11
    assert {world.replicas for world in worlds} == {1, 2}
    assert (
        {world.overlap for world in worlds} == {world.replay for world in worlds} == {True, False}
    )
    assert {world.window > 0 for world in worlds} == {True, False}


def test_shares_of_a_flood_and_of_a_trickle_are_fair() -> None:
    assert live_script(flood()).fault is None


def flood() -> Script:
    """Return a script in which one address sends everything before a key sends anything."""
    world = WorldSpec(pages=16, rows=1, max_queued=400, reuse=False)
    calls = [
        Arrive(
            at=1.0 + 1e-4 * key,
            key=key,
            prompt=chr(97 + key % 24) * (40 + key // 24),
            new=8,
            ignore_eos=True,
            share=int(key > 40),
        )
        for key in range(1, 60)
    ]
    return Script(0, world, calls)
