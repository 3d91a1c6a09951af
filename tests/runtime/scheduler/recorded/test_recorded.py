"""The scheduler has the device do what it did when this was recorded, and answers the same."""

import logging
import re
from collections import Counter

import pytest

from tests.runtime.scheduler.recorded.record import WORKLOADS, difference, played, read
from tests.runtime.scheduler.recorded.workloads import workload

PARTS = 6
ANEW = "python -m tests.runtime.scheduler.recorded.record"


# Every other workload is for those with time.
OFTEN = [pytest.param(k, marks=(pytest.mark.slow,) if k % 2 else ()) for k in range(PARTS)]


@pytest.mark.parametrize("part", OFTEN)
def test_plans_and_answers_are_as_recorded(part: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="umbra.scheduler")
    recorded = read()
    assert len(recorded) == WORKLOADS

    changed = {
        seed: text
        for seed in range(part, WORKLOADS, PARTS)
        if (text := difference(recorded[seed], played(seed)))
    }

    if changed:
        seed = min(changed, key=lambda seed: len(changed[seed]))
        pytest.fail(
            f"{len(changed)} of {WORKLOADS // PARTS} workloads differ: {[*changed]}\n"
            f"workload {seed}, {workload(seed)}\n{changed[seed]}\n"
            f"if this is wanted: {ANEW}",
            pytrace=False,
        )


def test_the_record_has_some_of_everything() -> None:
    counts = Counter[str]()
    for block in read():
        for count, name in re.findall(r"(\d+) ([^,]+)", block[-1]):
            counts[name] += int(count)

    assert {"replays", "held rows", "mixed steps", "retracted requests"} <= counts.keys()
    assert not {name: count for name, count in counts.items() if count < 20}


def test_a_difference_is_shown_with_its_whole_step() -> None:
    old = ["step 0", " r1", "step 1", " r1 at 5", " r2 at 7", "answer r1: a"]
    new = ["step 0", " r1", "step 1", " r1 at 5", " r2 at 8", "answer r1: b"]

    assert difference(old, new).splitlines() == [
        *("before:", "step 0", " r1"),
        *("recorded:", "step 1", " r1 at 5", " r2 at 7"),
        *("now:", "step 1", " r1 at 5", " r2 at 8"),
    ]
    assert difference(old, old) == ""
    assert difference(old, old[:2]).splitlines()[-2:] == ["now:", "nothing more"]
