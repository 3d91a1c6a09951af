"""Rows of bytes in pages: store to slots, gather from slots."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from jit_kernels.checks import check_dense, check_dtype, check_shape
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select

__all__ = ["PageLayout", "gather_rows", "store_rows"]


@dataclass(frozen=True, slots=True)
class PageLayout:
    """Where the rows of a page lie: all data parts first, then all scale parts.

    page_rows    rows in a page, P
    data_bytes   bytes [0, P * data_bytes) hold the data parts
    scale_bytes  bytes [P * data_bytes, P * (data_bytes + scale_bytes)) the scale parts; 0: none
    page_bytes   page stride, padding included; a multiple of both parts
    """

    page_rows: int
    data_bytes: int
    scale_bytes: int
    page_bytes: int

    def __post_init__(self) -> None:
        parts = [self.data_bytes] + [self.scale_bytes] * (self.scale_bytes > 0)
        if self.page_bytes < self.page_rows * self.row_bytes or any(
            self.page_bytes % part or self.page_rows * self.data_bytes % part for part in parts
        ):
            raise ValueError(f"rows do not tile the page: {self}")

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, both parts."""
        return self.data_bytes + self.scale_bytes


_MODULE = "jit_kernels.paged_rows.reference"
_store_rows: Callable[..., None] = select(
    "store_rows",
    [on_host("paged_rows.host:store_rows"), Backend("reference", f"{_MODULE}:store_rows")],
)
_gather_rows: Callable[..., torch.Tensor] = select(
    "gather_rows",
    [on_host("paged_rows.host:gather_rows"), Backend("reference", f"{_MODULE}:gather_rows")],
)


def store_rows(
    pages: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor, layout: PageLayout
) -> None:
    """Write `rows` to `slots` of `pages`, in place.

    pages  [U, layout.page_bytes] uint8, contiguous; mutated
    slots  [M] int64   page * page_rows + row in the page; repeats only with equal rows
    rows   [M, layout.row_bytes] uint8   data part, then scale part

    Raises ShapeError before anything is written.
    """
    check_shape("pages", pages, None, layout.page_bytes)
    check_shape("rows", rows, slots.shape[0], layout.row_bytes)
    check_dtype("rows", rows, torch.uint8)
    check_dtype("slots", slots, torch.int64)
    check_dense("pages", pages, torch.uint8)
    _store_rows(pages, slots, rows, layout)


def gather_rows(pages: torch.Tensor, slots: torch.Tensor, layout: PageLayout) -> torch.Tensor:
    """Return the rows at `slots` of `pages` as [M, layout.row_bytes] uint8.

    pages  [U, layout.page_bytes] uint8, contiguous
    slots  [M] int64   page * page_rows + row in the page

    Raises ShapeError.
    """
    check_shape("pages", pages, None, layout.page_bytes)
    check_dtype("slots", slots, torch.int64)
    check_dense("pages", pages, torch.uint8)
    return _gather_rows(pages, slots, layout)
