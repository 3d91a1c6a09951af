"""Which rows an expert computes: pairs of row and expert sorted into blocks of one expert each."""

from collections.abc import Callable

import torch

from jit_kernels.cuda_device import why_no_triton
from jit_kernels.expert_blocks.blocks import ExpertBlocks, block_limit
from jit_kernels.registry import Backend, select

__all__ = ["ExpertBlocks", "block_limit", "expert_blocks"]

_MODULE = "jit_kernels.expert_blocks"
_expert_blocks: Callable[[torch.Tensor, int, int], ExpertBlocks] = select(
    "expert_blocks",
    [
        Backend("triton", f"{_MODULE}.triton_backend:expert_blocks", why_no_triton, "cuda"),
        Backend("reference", f"{_MODULE}.reference:expert_blocks"),
    ],
)


def expert_blocks(experts: torch.Tensor, num_experts: int, size: int) -> ExpertBlocks:
    """Sort pairs by expert, in the order of rows, each expert's padded to whole blocks.

    experts  [T, k] int32 or int64; ids outside 0..num_experts-1 belong to another rank
    size     places in a block, a power of two

    Returns as many blocks as there can be, whatever the ids: nothing here waits for the device, and
    a graph replays it for other ids. Experts follow each other in order. Nothing is checked: ops
    call it that have checked what they hand over.
    """
    return _expert_blocks(experts, num_experts, size)
