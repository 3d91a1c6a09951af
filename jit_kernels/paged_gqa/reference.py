"""Attention over pages in plain torch, a token at a time: products of one shape in any batch."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jit_kernels.paged_gqa import PagedRows

_TILE = 64


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
    """Attend; see `jit_kernels.paged_gqa.paged_gqa`. It is invariant in any case."""
    del invariant
    size, out = keys.shape[1], torch.zeros_like(q)
    first = range(len(q) + 1) if rows.first is None else rows.first.tolist()
    for row, length in enumerate(rows.length.tolist()):
        pages = rows.page_table[row, : -(-length // size)].long()
        held = tuple(
            pool.index_select(0, pages).flatten(0, 1)[:length].to(torch.float32)
            for pool in (keys, values)
        )
        for token in range(first[row], first[row + 1] if length else first[row]):
            end = length - (first[row + 1] - 1 - token)
            begin = max(0, end - window) if window else 0
            mine, others = (pool[begin:end].transpose(0, 1) for pool in held)
            out[token] = _attended(q[token].to(torch.float32) * scale, mine, others, sink)
    return out


def _attended(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, sink: torch.Tensor | None
) -> torch.Tensor:
    """Return what one token reads, [H, D] of its [H, D]; keys and values are [KH, S, D]."""
    groups, count, width = keys.shape
    # Whole tiles, so that products have few shapes; what is added has a weight of 0.
    keys, values = (
        torch.nn.functional.pad(pool, (0, 0, 0, -count % _TILE)) for pool in (keys, values)
    )
    logits = q.view(groups, -1, width) @ keys.transpose(1, 2)
    logits[:, :, count:] = -torch.inf
    if sink is not None:
        own = sink.to(torch.float32).view(groups, -1, 1)
        logits = torch.cat((logits, own), 2)
    weights = logits.softmax(2)[:, :, : keys.shape[1]]
    return (weights @ values).view(-1, width)
