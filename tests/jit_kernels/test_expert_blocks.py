"""Pairs of row and expert, sorted into blocks: each has one place, of its own expert."""

import pytest
import torch

from jit_kernels.expert_blocks import block_limit, expert_blocks


@pytest.mark.parametrize(("rows", "experts", "top_k", "size"), [(1, 9, 3, 8), (40, 5, 2, 4)])
def test_each_pair_has_a_place_in_a_block_of_its_expert(
    rows: int, experts: int, top_k: int, size: int
) -> None:
    chosen = torch.rand(rows, experts).argsort(1)[:, :top_k]

    blocks = expert_blocks(chosen, num_experts=experts, size=size)

    flat, place = chosen.flatten(), blocks.place.long()
    assert torch.equal(blocks.slots[place].long(), torch.arange(rows * top_k))
    assert torch.equal(blocks.expert[place // size].long(), flat)
    assert torch.equal(blocks.member[place].long(), flat)
    assert int((blocks.slots >= 0).sum()) == rows * top_k
    assert torch.equal(blocks.slots < 0, blocks.member < 0)


def test_blocks_follow_each_other_and_rows_keep_their_order() -> None:
    chosen = torch.tensor([[3], [1], [3], [3], [1]])

    blocks = expert_blocks(chosen, num_experts=4, size=2)

    assert blocks.slots.tolist() == [1, 4, 0, 2, 3, -1, -1, -1]
    assert blocks.expert.tolist() == [1, 3, 3, -1]
    assert blocks.member.tolist() == [1, 1, 3, 3, 3, -1, -1, -1]
    assert blocks.place.tolist() == [2, 0, 3, 4, 1]


def test_pairs_of_other_ranks_have_no_place() -> None:
    blocks = expert_blocks(torch.tensor([[5, 0], [-1, 4]]), num_experts=4, size=2)

    assert blocks.place.tolist() == [-1, 0, -1, -1]
    assert blocks.expert.tolist()[0] == 0
    assert set(blocks.expert.tolist()[1:]) == {-1}


@pytest.mark.parametrize("size", [1, 2, 8])
def test_the_limit_is_reached_by_the_worst_spread_and_by_no_other(size: int) -> None:
    for pairs in range(1, 40):
        worst = torch.arange(pairs) % 6
        counts = torch.bincount(worst, minlength=6)
        # One pair more than whole blocks for as many experts as there are pairs for it.
        used = int(((counts + size - 1) // size).sum())
        assert used <= block_limit(pairs, 6, size)
    assert block_limit(6 * size + 6, 6, size) == 12 if size > 1 else True
