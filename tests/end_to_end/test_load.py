"""The short forms of `python -m tests.load`; bounds in seconds are for a machine of its own."""

import pytest

from tests.load.asks import Sizes
from tests.load.clients import Crowd, measure_clients
from tests.load.lines import Line, table
from tests.load.overload import Flood, measure_overload
from tests.testing.server_process import running_server

SIZES = Sizes(prompt_tokens=24, new_tokens=4)
FLAGS = ("--max-running-requests", "8", "--max-total-tokens", "16384")


def missed(lines: list[Line], *timed: str) -> list[str]:
    """Return the lines that do not hold, but for those about time."""
    return [line.name for line in lines if not line.holds and not line.name.startswith(timed)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_clients_of_all_manners_are_answered_and_leave_nothing() -> None:
    with running_server(*FLAGS) as server:
        lines = measure_clients(server, Crowd(120, 60, 8, 1, SIZES, calm_s=5.0))

    assert not missed(lines, "polite client"), table(lines)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_flooded_server_answers_or_refuses_and_a_refusal_costs_little() -> None:
    with running_server(*FLAGS, "--max-queued-requests", "8", check=False) as server:
        lines = measure_overload(server, Flood(10.0, 10.0, 8, 8, 1, SIZES))

    timed = ("flooded / peak", "a refusal comes after", "first token after")
    assert not missed(lines, *timed), table(lines)
