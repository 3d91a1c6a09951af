"""Rows of bytes in pages, in C."""

from typing import TYPE_CHECKING

import torch

from jit_kernels.host import function, raise_fault

if TYPE_CHECKING:
    from jit_kernels.paged_rows import PageLayout

_copy_rows = function("copy_rows", "pppiiiiiii")


def store_rows(
    pages: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor, layout: "PageLayout"
) -> None:
    """Write rows to slots; see `jit_kernels.paged_rows.store_rows`."""
    _copy(pages, slots, rows.contiguous(), True, layout)


def gather_rows(pages: torch.Tensor, slots: torch.Tensor, layout: "PageLayout") -> torch.Tensor:
    """Return the rows at slots; see `jit_kernels.paged_rows.gather_rows`."""
    rows = torch.empty((slots.shape[0], layout.row_bytes), dtype=torch.uint8)
    _copy(pages, slots, rows, False, layout)
    return rows


def _copy(
    pages: torch.Tensor,
    slots: torch.Tensor,
    rows: torch.Tensor,
    to_pages: bool,
    layout: "PageLayout",
) -> None:
    pointers = (pages.data_ptr(), slots.contiguous().data_ptr(), rows.data_ptr())
    sizes = (layout.page_rows, layout.data_bytes, layout.scale_bytes, layout.page_bytes)
    raise_fault(_copy_rows(*pointers, to_pages, slots.shape[0], pages.shape[0], *sizes))
