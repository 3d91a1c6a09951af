"""Attention over pages by FlashAttention 3: a kernel for a token each, and one for chunks.

Source: `flash_attn_with_kvcache` of tokenspeed-fa3. With `num_splits` of 1 the keys of a row are
read in one order; with 0 the library divides them among processors, which pays off where tiles are
few.
"""

from typing import TYPE_CHECKING, Any

import torch
from flash_attn_interface import (  # pyright: ignore[reportMissingImports]
    flash_attn_with_kvcache,  # pyright: ignore[reportUnknownVariableType]
)

if TYPE_CHECKING:
    from jit_kernels.paged_gqa import PagedRows

# Rows of queries, each head by itself, that a tile has; and tiles that keep a device busy.
_TILE, _ENOUGH = 128, 128


def paged_gqa(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rows: "PagedRows",
    scale: float,
    window: int,
    sink: torch.Tensor | None,
    invariant: bool,
) -> torch.Tensor:
    """Attend; see `jit_kernels.paged_gqa.paged_gqa`."""
    groups, share = keys.shape[2], q.shape[1] // keys.shape[2]
    tiles = rows.length.shape[0] * groups * -(-rows.most * share // _TILE)
    alone = rows.first is None
    attend: Any = flash_attn_with_kvcache
    out: torch.Tensor = attend(
        q.unsqueeze(1) if alone else q,
        keys,
        values,
        cache_seqlens=rows.length,
        page_table=rows.page_table,
        cu_seqlens_q=rows.first,
        max_seqlen_q=None if alone else rows.most,
        softmax_scale=scale,
        causal=True,
        window_size=(window - 1, 0) if window else (-1, -1),
        num_splits=1 if invariant or tiles >= _ENOUGH else 0,
        sinks=sink,
    )
    return out.squeeze(1) if alone else out
