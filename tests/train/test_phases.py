"""The table of phases, and the learning rate over it."""

import pytest

from tests.train.mode import Mode
from tests.train.phases import (
    LEAST_RATE,
    PHASES,
    REWARM_STEPS,
    WARM_UP_STEPS,
    Phase,
    first_step,
    is_whole,
    phase_at,
    rate_at,
    scaled,
)

TABLE = (
    Phase("one", 512, 4096, 2048, 600, Mode()),
    Phase("two", 1024, 4096, 4096, 400, Mode(select=True), rate=0.5),
)


def test_a_step_has_a_phase_and_a_place_in_it() -> None:
    assert [phase_at(TABLE, step) for step in (0, 599, 600, 999)] == [
        (0, 0),
        (0, 599),
        (1, 0),
        (1, 399),
    ]
    with pytest.raises(IndexError):
        phase_at(TABLE, 1000)


def test_the_rate_rises_then_falls_over_all_phases() -> None:
    rates = [rate_at(TABLE, step) for step in range(1000)]

    assert rates[0] == pytest.approx(1 / WARM_UP_STEPS)
    assert rates[WARM_UP_STEPS] == pytest.approx(1.0)
    assert rates[599] > rates[600] == pytest.approx(rates[599] / 2, rel=0.01)
    assert rates[-1] == pytest.approx(0.5 * LEAST_RATE, rel=0.01)


def test_a_phase_is_found_by_its_name() -> None:
    assert first_step(TABLE, "one") == 0
    assert first_step(TABLE, "two") == 600
    with pytest.raises(KeyError):
        first_step(TABLE, "three")


def test_votes_are_learnt_from_the_first_phase_on() -> None:
    assert all(phase.whole_every for phase in PHASES)


def test_some_steps_are_of_votes_alone_and_see_no_blocks_of_4() -> None:
    phase = Phase("three", 512, 4096, 4096, 6, Mode(select=True), whole_every=3)

    assert [phase.is_whole(step) for step in range(6)] == [False, False, True] * 2
    assert phase.mode_at(1) == phase.mode
    assert phase.mode_at(2) == Mode(select=True, hidden=(4,))
    assert not any(is_whole(step, 0) for step in range(6))
    assert not any(TABLE[0].is_whole(step) for step in range(6))


def test_lost_moments_slow_the_run_down_for_some_steps() -> None:
    assert rate_at(TABLE, 500, since_lost=0) < 0.1 < rate_at(TABLE, 500)
    assert rate_at(TABLE, 500, since_lost=REWARM_STEPS) == rate_at(TABLE, 500)


def test_a_trial_shrinks_every_phase_alike() -> None:
    assert [phase.steps for phase in scaled(TABLE, 0.1)] == [60, 40]
    assert [phase.steps for phase in scaled(TABLE, 1e-9)] == [1, 1]


def test_what_was_done_before_a_trial_stays_as_long_as_it_was() -> None:
    assert [phase.steps for phase in scaled(TABLE, 0.1, done=600)] == [600, 40]
    assert [phase.steps for phase in scaled(TABLE, 0.1, done=599)] == [60, 40]


def test_the_table_cuts_whole_rows_and_ends_as_the_model_is_served() -> None:
    for phase in PHASES:
        assert phase.length % 128 == 0
        assert phase.batch % phase.length == 0
        assert phase.batch % phase.micro == 0
        assert phase.micro % phase.length == 0
    last = PHASES[-1].mode
    assert last.select
    assert last.train_indexer
    assert last.round_weights
    assert last.round_records
