"""A workspace in plain torch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from jit_kernels.kv_records.reference import decode_records
from jit_kernels.paged_attention.reference import ROPE
from jit_kernels.paged_rows.reference import gather_rows

if TYPE_CHECKING:
    from jit_kernels.kv_workspace import RecordSet


def fill_workspace(out: torch.Tensor, sets: "Sequence[RecordSet]") -> None:
    """Decode records; see `jit_kernels.kv_workspace.fill_workspace`."""
    first = 0
    for part in sets:
        slots = part.slots.to(torch.int64)
        records = gather_rows(part.pages, slots.clamp(min=0), part.layout)
        numbers = decode_records(records, "fp8", part.layout.data_bytes - ROPE, ROPE)
        last = first + slots.shape[0]
        out[first:last] = numbers.masked_fill((slots < 0).unsqueeze(1), 0.0)
        first = last
