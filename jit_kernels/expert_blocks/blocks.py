"""What a sort of pairs by expert gives, and how large it can become."""

from typing import NamedTuple

import torch


class ExpertBlocks(NamedTuple):
    """Pairs, numbered `row * k + choice`, in the order they are computed in.

    slots   [blocks * size] int32   the pair at each place, -1 where a block has fewer
    expert  [blocks] int32          whose block it is, -1 for blocks past the last
    member  [blocks * size] int32   the expert of the pair at each place, -1 where there is none
    place   [rows * k] int32        where each pair is, -1 if its expert is not one of ours
    """

    slots: torch.Tensor
    expert: torch.Tensor
    member: torch.Tensor
    place: torch.Tensor


def block_limit(pairs: int, num_experts: int, size: int) -> int:
    """Return the most blocks of `size` that `pairs` can make up, however they are spread."""
    return (pairs + (size - 1) * min(pairs, num_experts)) // size
