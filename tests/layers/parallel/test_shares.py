"""One rank holds everything."""

from collections.abc import Callable

import pytest

from layers.parallel.shares import Share, Shares

KINDS = [
    Shares.heads,
    Shares.groups,
    Shares.columns,
    Shares.rows,
    Shares.experts,
    Shares.vocabulary,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_one_rank_holds_everything(kind: Callable[[Shares, int], Share]) -> None:
    """Also what is no multiple of a block: a whole is not cut."""
    assert kind(Shares(), 97) == Share(0, 97, 97)


@pytest.mark.parametrize(("rank", "world"), [(0, 2), (1, 1), (0, 0)])
def test_more_ranks_are_refused(rank: int, world: int) -> None:
    with pytest.raises(ValueError, match="only one rank"):
        Shares(rank, world)
