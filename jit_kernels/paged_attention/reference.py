"""Attention over packed records in plain torch, row by row."""

from typing import TYPE_CHECKING

import torch

from jit_kernels.kv_records.reference import decode_records
from jit_kernels.paged_rows.reference import gather_rows

if TYPE_CHECKING:
    from jit_kernels.paged_attention import PagedKeys, SplitPlan

ROPE = 64


def paged_attention(
    q: torch.Tensor,
    window: "PagedKeys",
    extra: "PagedKeys | None",
    sink: torch.Tensor,
    scale: float,
    plan: "SplitPlan",
    deterministic: bool,
) -> torch.Tensor:
    """Attend; see `jit_kernels.paged_attention.paged_attention`. Always deterministic."""
    sets = [_keys_of_rows(keys) for keys in (window, extra) if keys is not None]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for row in range(q.shape[0]):
        keys = torch.cat([numbers[places[row]] for numbers, places in sets])
        out[row] = attend(q[row].float(), keys, sink, scale)
    return out


def attend(q: torch.Tensor, keys: torch.Tensor, sink: torch.Tensor, scale: float) -> torch.Tensor:
    """Return [H, D] float32: attention of queries [H, D] over all keys [K, D], K may be 0."""
    logits = torch.cat((sink.unsqueeze(1), q @ keys.T * scale), 1)
    greatest = logits.amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
    p = (logits - greatest).exp()
    total = p.sum(1, keepdim=True)
    return p[:, 1:] @ keys / torch.where(total == 0, 1.0, total)


def _keys_of_rows(keys: "PagedKeys") -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return the numbers of all keys, each decoded once, and where those of each row stand."""
    listed = keys.slots >= 0
    if keys.lengths is not None:
        listed &= torch.arange(keys.slots.shape[1], device=listed.device) < keys.lengths[:, None]
    slots, places = keys.slots[listed].to(torch.int64).unique(return_inverse=True)
    records = gather_rows(keys.pages, slots, keys.layout)
    numbers = decode_records(records, "fp8", keys.layout.data_bytes - ROPE, ROPE)
    return numbers, places.split(listed.sum(1).tolist())
