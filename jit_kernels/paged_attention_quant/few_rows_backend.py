"""Attention of few rows that turns back and rounds what it adds up; see `paged_attention`.

A launch that adds up the parts of split rows is one after which the next has to wait in any case.
So it does what that one would do: what is added up goes through memory no more.
"""

import torch

from jit_kernels.out_rope_quant import out_rope_quant
from jit_kernels.paged_attention import PagedKeys, SplitPlan, few_rows_backend
from jit_kernels.paged_attention_quant import separate_backend

# Channels that turn.
_TURNED = 64


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
    """Attend and round, [B, H C]; see `jit_kernels.paged_attention_quant`."""
    teams = 0 if deterministic else few_rows_backend.teams_of(q, window, extra)
    if not teams:
        call = q, window, extra, rotation, sink, scale, plan, deterministic, settled
        return separate_backend.attend(*call)
    keys = window, extra
    if teams > 1 and rotation.shape[2] == _TURNED:
        return few_rows_backend.attend_quant(
            q, *keys, rotation.contiguous(), sink, scale, teams, settled=settled
        )
    out = few_rows_backend.attend(q, *keys, sink, scale, teams, settled=settled)
    codes, scales = out_rope_quant(out, rotation, groups=1)
    return codes.flatten(1), scales.flatten(1)
