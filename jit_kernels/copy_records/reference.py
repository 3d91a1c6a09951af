"""Packed records copied in plain torch."""

from typing import TYPE_CHECKING

import torch

from jit_kernels.paged_rows.reference import gather_rows, store_rows

if TYPE_CHECKING:
    from jit_kernels.kv_workspace import RecordSet


def copy_records(pages: torch.Tensor, source: "RecordSet", target: "RecordSet") -> None:
    """Copy; see `jit_kernels.copy_records.copy_records`. `pages` are those of `source`."""
    moved = (source.slots >= 0) & (target.slots >= 0)
    rows = gather_rows(pages, source.slots[moved].to(torch.int64), source.layout)
    store_rows(target.pages, target.slots[moved].to(torch.int64), rows, target.layout)
