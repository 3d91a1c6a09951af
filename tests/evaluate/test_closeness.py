"""Where answers part, how close the choice was there, and what arithmetic alone changes."""

import math

import pytest

from tests.evaluate.answer import Answer, Choice
from tests.evaluate.closeness import distance_at_fork, measure_noise
from tests.train.dialogue import Reply


def told(*steps: tuple[int, dict[str, float]], choices: bool = True) -> Answer:
    """Return an answer whose tokens are named after their ids; each step tells the likeliest."""
    chosen = tuple(Choice(f"t{token}", likely[f"t{token}"], likely) for token, likely in steps)
    ids = tuple(token for token, _ in steps)
    return Answer(Reply(""), "stop", 0, ids, 9, 0, chosen if choices else ())


SURE = (7, {"t7": -0.1, "t8": -4.0})
CLOSE = {"t1": -0.70, "t2": -0.72, "t3": -5.0}
SINCE = {"t1": -0.74, "t2": -0.69, "t3": -5.5}


def test_equal_answers_do_not_part() -> None:
    assert distance_at_fork(told(SURE), told(SURE)) is None


def test_where_answers_part_the_distance_is_that_of_the_cold_one() -> None:
    base, other = told(SURE, (1, CLOSE)), told(SURE, (2, SINCE))

    assert distance_at_fork(base, other) == pytest.approx(0.02)
    assert distance_at_fork(other, base) == pytest.approx(0.05)


@pytest.mark.parametrize(
    "other",
    [
        told(SURE),
        told(SURE, (1, CLOSE), SURE),
        told(SURE, (4, {"t4": -0.1})),
        told(SURE, (2, SINCE), choices=False),
    ],
    ids=["shorter", "longer", "unheard of", "nothing told"],
)
def test_what_cannot_be_told_is_not_close(other: Answer) -> None:
    assert distance_at_fork(told(SURE, (1, CLOSE)), other) == math.inf


def test_noise_is_what_distances_differ_by_up_to_where_answers_part() -> None:
    moved = (7, {"t7": -0.11, "t8": -4.0})
    far = (9, {"t9": -0.1, "t8": -0.2})

    noise = measure_noise(
        [
            (told(SURE, (1, CLOSE), SURE), told(moved, (2, SINCE), far)),
            (told(SURE), told(SURE)),
        ]
    )

    assert noise is not None
    assert (noise.most, noise.typical, noise.n) == (pytest.approx(0.07), pytest.approx(0.01), 3)


def test_what_fell_out_of_the_likeliest_counts_as_the_least_of_them() -> None:
    base, other = told((1, CLOSE)), told((1, {"t1": -0.1, "t3": -3.1}))

    noise = measure_noise([(base, other)])

    assert noise is not None
    assert noise.most == pytest.approx(3.0 - 0.02)


def test_nothing_told_is_no_measurement() -> None:
    assert measure_noise([(told(SURE, choices=False), told(SURE, choices=False))]) is None
    assert measure_noise([]) is None
