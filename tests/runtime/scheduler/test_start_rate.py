"""How long a queue takes, by the starts of the last seconds."""

import pytest

from runtime.scheduler.start_rate import LONGEST_S, StartRate


def test_a_queue_takes_as_long_as_the_rate_of_late_says() -> None:
    rate = StartRate()
    assert rate.seconds_for(5, 0.0) == 0.0
    for second in range(100):
        rate.note(float(second), 4 if second > 80 else 1)

    assert rate.seconds_for(20, 100.0) == pytest.approx(5.0, rel=0.1)
    assert rate.seconds_for(0, 100.0) == 0.0


def test_an_estimate_grows_while_nothing_starts_up_to_what_anybody_can_tell() -> None:
    rate = StartRate()
    rate.note(0.0, 2)

    assert rate.seconds_for(4, 1.0) == 2.0
    assert rate.seconds_for(4, 10.0) == 20.0
    assert rate.seconds_for(4, 1e6) == LONGEST_S
