"""Attention that is turned back and rounded, as the references after each other."""

import torch

from jit_kernels.out_rope_quant.reference import out_rope_quant
from jit_kernels.paged_attention import PagedKeys, SplitPlan
from jit_kernels.paged_attention.reference import paged_attention


def attend(
    q: torch.Tensor,
    window: PagedKeys,
    extra: PagedKeys | None,
    rotation: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    plan: SplitPlan,
    deterministic: bool,
    settled: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend, then round, [B, H C]; see `jit_kernels.paged_attention_quant`."""
    out = paged_attention(q, window, extra, sink, scale, plan, deterministic)
    return out_rope_quant(out, rotation)
