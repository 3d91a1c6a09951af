"""Where layers with a window write and read on a GPU: rings of SWA pages, a workspace of chunks.

A row's window pages are a ring: position p lies in page p // SWA_PAGE % W of them. A decoding row
attends the ring itself, through a table that begins at a border of positions:

    border <= p - window + 1                    p
    [ page ][ page ][ page ][ page ]            of which at most W differ

Chunks are longer than a ring. They attend a workspace of pages of that size, in which each row has

    [ border .. its window )[ its chunk )

at positions from the same kind of border. Keys are added up in tiles that begin there, so that a
token reads the same bits from a ring and from a workspace.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from jit_kernels.paged_gqa import PagedRows
from layers.staging import stage_together
from layers.steps.decode_rows import DecodeRows
from layers.steps.forward_batch import ForwardBatch
from layers.steps.step_tokens import SaveList, StepTokens
from mem_cache.spec import TreeSpec, div_ceil

__all__ = [
    "WindowPlaces",
    "Workspace",
    "ring_slots",
    "window_saves",
    "windows_of_chunks",
    "windows_of_rows",
]

# Tables begin at multiples of so many positions. FlashAttention 3 takes 128 keys at a time of heads
# of 64 or 128 channels and 64 of 256, our own kernel 64.
_BORDER = 128


@dataclass(frozen=True, slots=True)
class Workspace:
    """Room for the keys of one layer at a time, or its values: slots of `pages` SWA pages.

    read_from  [g] int64   SWA slots of what windows hold before the chunks
    read_to    [g] int64   workspace slots that it is copied to
    save_from  [s] int64   workspace slots of what the step saves
    save_to    [s] int64   SWA slots that it is copied to when the layer has attended
    """

    pages: int
    read_from: Tensor
    read_to: Tensor
    save_from: Tensor
    save_to: Tensor


@dataclass(frozen=True, slots=True)
class WindowPlaces:
    """T tokens of n rows in layers with a window.

    slots      [T] int64   where a token's keys and values are written: in SWA pages, or in the
               workspace
    rows       what attention takes; positions count from each row's border
    workspace  None: tokens write to SWA pages and read from them
    """

    slots: Tensor
    rows: PagedRows
    workspace: Workspace | None


def windows_of_rows(rows: DecodeRows, tree: TreeSpec) -> WindowPlaces:
    """Return the places of decoding rows, on their device; those that pad the batch use page 0."""
    position = rows.position.clamp(min=0)
    first = _border(position, tree)
    pages = torch.arange(_table_pages(tree), device=position.device) * tree.swa_page_size
    begins = ring_slots(rows.window, first.unsqueeze(1) + pages, tree)
    table = (begins // tree.swa_page_size).to(torch.int32)
    own = ring_slots(rows.window, position.unsqueeze(1), tree).squeeze(1)
    length = (rows.position + 1 - first).to(torch.int32)
    return WindowPlaces(
        slots=torch.where(rows.position < 0, 0, own),
        rows=PagedRows(table, length, None, 1),
        workspace=None,
    )


def windows_of_chunks(
    batch: ForwardBatch, tree: TreeSpec, rows: PagedRows, device: torch.device
) -> WindowPlaces:
    """Return the places of a batch in host memory; the host does not wait for the device.

    rows  the same rows over full pages

    What lies before `batch.window_from` is not read from windows: tokens find zeros there.
    """
    tokens = StepTokens(batch, draft_tokens=tree.draft_tokens)
    start, end = batch.chunk_start, batch.chunk_start + batch.chunk_len
    first = _border(start, tree)
    pages = (end - first + tree.swa_page_size - 1) // tree.swa_page_size
    base = pages.cumsum(0) - pages
    # Adding it to a position gives the workspace slot.
    shift = base * tree.swa_page_size - first
    columns = max(_table_pages(tree), int(pages.max()))
    table = base.unsqueeze(1) + torch.arange(columns).clamp(max=(pages - 1).unsqueeze(1))
    position, readable = tokens.before(tree.window - 1)
    held = ring_slots(batch.window, position, tree)
    slots = tokens.position + shift.index_select(0, tokens.row)
    before = tokens.before(tree.window)[0] + shift.unsqueeze(1)
    saves, entries = window_saves(tokens, tree), torch.cat((before.flatten(), slots))
    arrays = {
        "slots": slots,
        "read_from": held[readable],
        "read_to": (position + shift.unsqueeze(1))[readable],
        "save_from": entries.index_select(0, saves.source),
        "save_to": saves.target,
        "page_table": table.to(torch.int32),
        "length": (end - first).to(torch.int32),
    }
    staged = stage_together({name: tensor.numpy() for name, tensor in arrays.items()}, device)
    slots, table, length = (staged.pop(name) for name in ("slots", "page_table", "length"))
    workspace = Workspace(int(pages.sum()), **staged)
    return WindowPlaces(slots, replace(rows, page_table=table, length=length), workspace)


def ring_slots(window: Tensor, position: Tensor, tree: TreeSpec) -> Tensor:
    """Return the SWA slots of positions, [n, k] int64.

    window    [n, W] int32   SWA pages of each row
    position  [n, k] int64
    """
    size = tree.swa_page_size
    page = window.gather(1, position // size % tree.window_pages).to(torch.int64)
    return page * size + position % size


def window_saves(tokens: StepTokens, tree: TreeSpec) -> SaveList:
    """Return the SWA slots to write; before each chunk there are `tree.window` positions."""
    batch, span, size = tokens.batch, tree.window, tree.swa_page_size
    save, row, position = tokens.saved(span)
    column, offset = position // size % tree.window_pages, position % size
    target = batch.save_window[save, column].to(torch.int64) * size + offset
    held = batch.window[row, column].to(torch.int64) * size + offset
    kept = position - batch.chunk_start[row] + span
    return tokens.save_list(row, position, span=span, kept=kept, target=target, held=held)


def _border(position: Tensor, tree: TreeSpec) -> Tensor:
    """Return where tables begin of rows whose first token stands at a position."""
    return (position - (tree.window - 1)).clamp(min=0) // _BORDER * _BORDER


def _table_pages(tree: TreeSpec) -> int:
    """Return how many pages the window of one token may touch, from its border on."""
    return div_ceil(tree.window - 1 + _BORDER, tree.swa_page_size)
