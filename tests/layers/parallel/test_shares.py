"""One rank holds everything."""

import pytest
import torch

from layers.parallel.shares import Shards


def test_one_rank_holds_everything() -> None:
    shards, partial = Shards(), torch.randn(3)

    assert (shards.share(6), shards.first(6)) == (6, 0)
    assert torch.equal(shards.all_reduce(partial), partial)


@pytest.mark.parametrize(("rank", "world"), [(0, 2), (1, 1), (0, 0)])
def test_more_ranks_are_refused(rank: int, world: int) -> None:
    with pytest.raises(ValueError, match="only one rank"):
        Shards(rank, world)
