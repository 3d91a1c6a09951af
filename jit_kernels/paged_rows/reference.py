"""Rows of bytes in pages, in plain torch: both parts are rows of a plain matrix."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jit_kernels.paged_rows import PageLayout


def store_rows(
    pages: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor, layout: "PageLayout"
) -> None:
    """Write rows to slots; see `jit_kernels.paged_rows.store_rows`."""
    size = layout.data_bytes
    flat = pages.view(-1, size).view(_word(size))
    flat.index_copy_(0, _data_index(slots, layout), _words(rows[:, :size]))
    if layout.scale_bytes:
        flat = pages.view(-1, layout.scale_bytes).view(_word(layout.scale_bytes))
        flat.index_copy_(0, _scale_index(slots, layout), _words(rows[:, size:]))


def gather_rows(pages: torch.Tensor, slots: torch.Tensor, layout: "PageLayout") -> torch.Tensor:
    """Return the rows at slots; see `jit_kernels.paged_rows.gather_rows`."""
    size = layout.data_bytes
    flat = pages.view(-1, size).view(_word(size))
    data = flat.index_select(0, _data_index(slots, layout)).view(torch.uint8)
    if not layout.scale_bytes:
        return data
    flat = pages.view(-1, layout.scale_bytes).view(_word(layout.scale_bytes))
    scales = flat.index_select(0, _scale_index(slots, layout)).view(torch.uint8)
    return torch.cat((data, scales), 1)


def _word(size: int) -> torch.dtype:
    """Return the widest integer that tiles `size` bytes: copies are by element."""
    return torch.int64 if size % 8 == 0 else torch.int32 if size % 4 == 0 else torch.uint8


def _words(part: torch.Tensor) -> torch.Tensor:
    """Return a part of the rows [M, bytes] as [M, words]."""
    # Flat first: a slice of a single row counts as contiguous, whatever its row stride.
    count, size = part.shape
    word = _word(size)
    return part.reshape(-1).view(word).view(count, size // word.itemsize)


def _data_index(slots: torch.Tensor, layout: "PageLayout") -> torch.Tensor:
    stride = layout.page_bytes // layout.data_bytes
    if stride == layout.page_rows:
        return slots
    page = slots // layout.page_rows
    return slots + page * (stride - layout.page_rows)


def _scale_index(slots: torch.Tensor, layout: "PageLayout") -> torch.Tensor:
    stride = layout.page_bytes // layout.scale_bytes
    before = layout.page_rows * layout.data_bytes // layout.scale_bytes
    page = slots // layout.page_rows
    return slots + page * (stride - layout.page_rows) + before
