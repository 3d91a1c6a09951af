"""Where the tokens of a step stand, write and read on a GPU; no layer has a state.

A step of chunks is derived on the host and copied at once; a step of decoding rows is derived on
the device from fixed buffers, so that a CUDA graph can hold it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from jit_kernels.paged_gqa import PagedRows
from layers.staging import stage_together
from layers.steps.decode_rows import DecodeRows
from layers.steps.forward_batch import ForwardBatch, finite_rows
from layers.steps.page_slots import PageSlots
from layers.steps.window_places import WindowPlaces, windows_of_chunks, windows_of_rows
from mem_cache.spec import TreeSpec

__all__ = ["PagePlaces", "of_chunks", "of_rows"]


@dataclass(frozen=True, slots=True)
class PagePlaces:
    """T tokens of n rows; all on the network's device.

    input_ids     [T] int64
    position      [T] int64
    slots         [T] int64   page * page_size + place that a token writes, in page 0 if it writes
                  none
    rows          what attention over pages takes
    logit_tokens  [k] int64   tokens whose logits are wanted; in a step of decoding rows all are
    row           [T] int64   of each token
    count         [n] int64   tokens of each row
    window        the same of layers with a window; None: there are none
    """

    input_ids: Tensor
    position: Tensor
    slots: Tensor
    rows: PagedRows
    logit_tokens: Tensor
    row: Tensor
    count: Tensor
    window: WindowPlaces | None = None

    def finite_rows(self, x: Tensor) -> Tensor:
        """Return which rows have only finite tokens, [n] bool; `x` is [T, d]."""
        return finite_rows(x.isfinite().all(1), self.row, self.count)


def of_chunks(batch: ForwardBatch, tree: TreeSpec, device: torch.device) -> PagePlaces:
    """Return the places of a batch in host memory; the host does not wait for the device."""
    there = PageSlots(batch, tree.page_size)
    length = batch.chunk_start + batch.chunk_len
    first = torch.nn.functional.pad(batch.chunk_len.cumsum(0), (1, 0))
    arrays = {
        "input_ids": batch.input_ids,
        "position": there.position,
        "slots": there.slots,
        "logit_tokens": batch.logit_tokens,
        "row": there.rows.row,
        "count": batch.chunk_len,
        "page_table": batch.page_table,
        "length": length.to(torch.int32),
        "first": first.to(torch.int32),
    }
    staged = stage_together({name: tensor.numpy() for name, tensor in arrays.items()}, device)
    of_rows = (staged.pop("page_table"), staged.pop("length"), staged.pop("first"))
    counts: list[int] = batch.chunk_len.tolist()
    rows = PagedRows(*of_rows, max(counts), tuple(counts))
    window = windows_of_chunks(batch, tree, rows, device) if tree.window else None
    return PagePlaces(rows=rows, window=window, **staged)


def of_rows(rows: DecodeRows, tree: TreeSpec) -> PagePlaces:
    """Return the places of decoding rows; those that pad the batch write to page 0."""
    position, page_size = rows.position.clamp(min=0), tree.page_size
    column = (position // page_size).unsqueeze(1)
    page = rows.page_table.gather(1, column).squeeze(1).to(torch.int64)
    slots = torch.where(rows.position < 0, 0, page * page_size + position % page_size)
    row = torch.arange(len(position), device=position.device)
    return PagePlaces(
        input_ids=rows.input_ids,
        position=position,
        slots=slots,
        rows=PagedRows(rows.page_table, (rows.position + 1).to(torch.int32), None, 1),
        logit_tokens=row,
        row=row,
        count=torch.ones_like(row),
        window=windows_of_rows(rows, tree) if tree.window else None,
    )
