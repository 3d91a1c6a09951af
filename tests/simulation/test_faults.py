"""Faults planted in scheduler, tree, manager and wire are found in a few hundred steps each."""

import pytest

from tests.simulation.faults import FAULTS, planted
from tests.simulation.running import live_script, live_seed
from tests.simulation.test_running import flood

STEPS, SEEDS = 200, 12
# Where a fault is found first: to look there first saves seconds, not more.
FIRST = {
    **dict.fromkeys(("cached tokens are one too many", "merged news lose a token"), 1),
    **dict.fromkeys(("point is saved a position early", "windows are not copied"), 1),
    "salt is left out": 1,
    **dict.fromkeys(("all choices have one seed", "twin gets the token of another row"), 3),
    **dict.fromkeys(("abort is ignored while it waits", "lock holds a page too few"), 3),
    **dict.fromkeys(("news of one request are lost", "suspended request keeps its share"), 4),
    "retracted request forgets a token": 4,
    "tokens are forbidden for too long": 1,
    **dict.fromkeys(("chunk is published unseen", "replay is a token short"), 5),
    "bad end of an answer stays in the tree": 8,
}
BY_SCRIPT = {"tokens are not charged"}


@pytest.mark.parametrize("name", sorted(FAULTS.keys() - BY_SCRIPT))
def test_a_planted_fault_is_found(name: str) -> None:
    first = FIRST.get(name, 0)
    seeds = [first, *(seed for seed in range(SEEDS) if seed != first)]
    with planted(name):
        assert any(live_seed(seed, STEPS).fault for seed in seeds)


def test_unfair_shares_are_found() -> None:
    with planted("tokens are not charged"):
        assert "more than" in str(live_script(flood()).fault)
