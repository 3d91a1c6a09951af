"""Attention over a workspace by FlashMLA's kernel for Hopper.

It takes 64 or 128 heads; others are padded by queries of zeros. Source: flash_mla 1.0.0,
`flash_mla_sparse_fwd` with `use_legacy`.
"""

import torch
from flash_mla import flash_mla_sparse_fwd

from jit_kernels.paged_attention.triton_heads import pad_heads


def sparse_prefill(
    q: torch.Tensor,
    keys: torch.Tensor,
    index: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """Attend; see `jit_kernels.sparse_prefill.sparse_prefill`."""
    tokens, heads, width = q.shape
    if not q.numel():
        return torch.empty((tokens, heads, width), dtype=q.dtype, device=q.device)
    q, sink = pad_heads(q, sink)
    out, _, _ = flash_mla_sparse_fwd(
        q,
        keys.unsqueeze(1),
        index.unsqueeze(1),
        scale,
        d_v=width,
        attn_sink=sink,
        topk_length=lengths,
        use_legacy=True,
        return_log2_lse=False,
    )
    return out[:, :heads]
