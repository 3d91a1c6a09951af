"""Attention over a workspace in plain torch, token by token."""

import torch

from jit_kernels.paged_attention.reference import attend


def sparse_prefill(
    q: torch.Tensor,
    keys: torch.Tensor,
    index: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """Attend; see `jit_kernels.sparse_prefill.sparse_prefill`."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for token in range(q.shape[0]):
        mine = index[token] if lengths is None else index[token, : int(lengths[token])]
        found = keys[mine[mine >= 0].to(torch.int64)].float()
        out[token] = attend(q[token].float(), found, sink, scale)
    return out
