"""Attention, then turning back and rounding by a call of its own; each has its own backend."""

import torch

from jit_kernels.out_rope_quant import out_rope_quant
from jit_kernels.paged_attention import PagedKeys, SplitPlan, paged_attention


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
    out = paged_attention(
        q, window, extra, sink=sink, scale=scale, plan=plan, deterministic=deterministic
    )
    codes, scales = out_rope_quant(out, rotation, groups=1)
    return codes.flatten(1), scales.flatten(1)
