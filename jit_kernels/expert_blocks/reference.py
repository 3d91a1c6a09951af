"""Blocks of pairs in plain torch."""

import torch

from jit_kernels.expert_blocks.blocks import ExpertBlocks, block_limit


def expert_blocks(experts: torch.Tensor, num_experts: int, size: int) -> ExpertBlocks:
    """Sort; see `jit_kernels.expert_blocks.expert_blocks`."""
    ids = experts.flatten().to(torch.int64)
    device = ids.device
    ours = (ids >= 0) & (ids < num_experts)
    order = torch.argsort(torch.where(ours, ids, num_experts), stable=True)[: int(ours.sum())]
    chosen = ids[order]
    counts = torch.bincount(chosen, minlength=num_experts)
    blocks = (counts + size - 1) // size
    rank = torch.arange(len(order), device=device) - (counts.cumsum(0) - counts)[chosen]
    at = (blocks.cumsum(0) - blocks)[chosen] * size + rank
    limit = block_limit(len(ids), num_experts, size)
    slots = torch.full((limit * size,), -1, dtype=torch.int32, device=device)
    member, place = slots.clone(), torch.full_like(ids, -1, dtype=torch.int32)
    slots[at], member[at], place[order] = order.int(), chosen.int(), at.int()
    whose = torch.full((limit,), -1, dtype=torch.int32, device=device)
    present = torch.arange(num_experts, device=device).repeat_interleave(blocks)
    whose[: len(present)] = present.int()
    return ExpertBlocks(slots, whose, member, place)
