"""Attention over latent records by FlashMLA's dense kernel for Hopper.

It reads blocks of 64 records of 512 + 64 channels; others go to Triton. A call has as many tokens
of each of its rows, and keeps float32 sums of all of them; a row of many tokens makes several
calls, of about as many tiles as there are processors. A call begins before the launch before it
has ended (`device_order`). Source: flash_mla 1.0.0, `flash_mla_with_kvcache` with `use_legacy`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from flash_mla import flash_mla_with_kvcache, get_mla_metadata

from jit_kernels.paged_latent import triton_backend
from jit_kernels.paged_latent.spans import spans

if TYPE_CHECKING:
    from jit_kernels.paged_gqa import PagedRows
    from jit_kernels.paged_latent import LatentPlan

_BLOCK, _LATENT, _WIDTH = 64, 512, 576
# Tokens and heads of a tile, and tiles of a call.
_TILE, _TILES = 64, 128


@dataclass(frozen=True, slots=True)
class _Call:
    """The tokens of some rows, as many of each.

    length    [r] int32   positions that the last token of each row reads
    blocks    [r, m] int32   block of each 64 positions
    schedule  what the library's scheduler makes of lengths, at the first call
    """

    tokens: slice
    length: torch.Tensor
    blocks: torch.Tensor
    schedule: Any


def paged_latent(
    q: torch.Tensor,
    records: torch.Tensor,
    rows: "PagedRows",
    values: int,
    scale: float,
    plan: "LatentPlan",
) -> torch.Tensor:
    """Attend; see `jit_kernels.paged_latent.paged_latent`."""
    tokens, heads, width = q.shape
    known = rows.first is None or rows.counts is not None
    if not tokens or (values, width) != (_LATENT, _WIDTH) or not known:
        return triton_backend.paged_latent(q, records, rows, values, scale, plan)
    if "calls" not in plan.held:
        plan.held["calls"] = list(_calls(rows, heads, records.shape[1]))
    blocks, calls = records.view(-1, _BLOCK, 1, width), plan.held["calls"]
    if len(calls) == 1:
        return _attended(q, blocks, calls[0], scale)
    return torch.cat([_attended(q[call.tokens], blocks, call, scale) for call in calls])


def _attended(q: torch.Tensor, blocks: torch.Tensor, call: _Call, scale: float) -> torch.Tensor:
    """Return what the tokens of a call read, [t, H, 512]."""
    attend: Any = flash_mla_with_kvcache
    out, _ = attend(
        q.unflatten(0, (call.length.shape[0], -1)),
        blocks,
        call.blocks,
        call.length,
        _LATENT,
        call.schedule,
        softmax_scale=scale,
        causal=True,
        is_fp8_kvcache=False,
        use_legacy=True,
    )
    return out.flatten(0, 1)


def _calls(rows: "PagedRows", heads: int, page: int) -> Iterator[_Call]:
    """Yield the calls of a step; the host does not wait for the device."""
    each = page // _BLOCK
    inside = torch.arange(each, dtype=torch.int32, device=rows.page_table.device)
    blocks = (rows.page_table.unsqueeze(2) * each + inside).flatten(1)
    for some, tokens, behind in spans(rows.counts, rows.length.shape[0], _TILES * _TILE // heads):
        # A call's rows end with its last token.
        length = rows.length[some] - behind if behind else rows.length[some]
        yield _Call(tokens, length, blocks[some], get_mla_metadata()[0])
