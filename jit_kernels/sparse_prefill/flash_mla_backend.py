"""Attention over a workspace by FlashMLA's kernel for Hopper.

It takes 64 or 128 heads; others are padded by queries of zeros. Source: flash_mla 1.0.0,
`flash_mla_sparse_fwd` with `use_legacy`.
"""

import torch
import torch.nn.functional as F
from flash_mla import flash_mla_sparse_fwd

_HEADS = (64, 128)


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
    padded = _HEADS[0] if heads <= _HEADS[0] else _HEADS[1]
    if padded != heads:
        q = F.pad(q, (0, 0, 0, padded - heads))
        sink = F.pad(sink, (0, padded - heads))
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
