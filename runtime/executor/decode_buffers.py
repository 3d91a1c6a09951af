"""The buffers of decode steps: filled on the host, copied to fixed places on the device."""

import numpy as np
import torch

from layers.steps.decode_rows import DecodeRows
from mem_cache.spec import div_ceil
from runtime.executor.line_tables import LineTables
from runtime.executor.plan_rows import PlanRows

__all__ = ["DecodeBuffers"]

# A step in flight, the one that is filled, and one to spare.
_SETS = 3
# Rows are counted in so many, so that every part begins where kernels like it.
_ROUND = 16
_WORD = 8


class _HostSet:
    """One set of staging arrays; those of int64 come before those of int32, as on the device.

    ids, index, position  [rows] int64
    ring, window          [rows], [rows, W] int32
    """

    def __init__(self, rows: int, window_pages: int, *, pages: int, pinned: bool) -> None:
        width = _head_bytes(rows, window_pages)
        self.head = torch.zeros(width, dtype=torch.uint8, pin_memory=pinned)
        self.table = torch.zeros(rows * pages, dtype=torch.int32, pin_memory=pinned)
        self._copied = torch.cuda.Event() if pinned else None
        raw = self.head.numpy()
        long = raw[: 3 * rows * _WORD].view(np.int64)
        short = raw[3 * rows * _WORD :].view(np.int32)
        self.ids, self.index, self.position = long.reshape(3, rows)
        self.ring = short[:rows]
        self.window = short[rows:].reshape(rows, window_pages)

    def wait(self) -> None:
        """Wait until the copies from here are done."""
        if self._copied is not None:
            self._copied.synchronize()

    def launched(self) -> None:
        """Note that the copies from here are under way."""
        if self._copied is not None:
            self._copied.record()


class DecodeBuffers:
    """Inputs of decode steps of up to `rows` rows, at the same addresses in every step.

    likely  [rows] int64 the likeliest tokens of the last one
    last    [rows] int64 by line, the token that was sampled last, which need not leave the device

    The token of a row is read through an index: from `last`, or from those that the host knows.
    """

    def __init__(self, rows: int, *, pages: int, window_pages: int, device: torch.device) -> None:
        """Allocate the buffers.

        pages  of the longest context
        """
        rows = div_ceil(rows, _ROUND) * _ROUND
        self.rows = rows
        pinned = device.type == "cuda"
        self._sets = [
            _HostSet(rows, window_pages, pages=pages, pinned=pinned) for _ in range(_SETS)
        ]
        self._turn = 0
        self.likely = torch.zeros(rows, dtype=torch.int64, device=device)
        sampled = rows * _WORD
        flat = torch.zeros(
            sampled + _head_bytes(rows, window_pages), dtype=torch.uint8, device=device
        )
        self._head = flat[sampled:]
        long = flat[: 4 * sampled].view(torch.int64)
        short = flat[4 * sampled :].view(torch.int32)
        # Sampled tokens, then the host's: one list for the index.
        self._known = long[: 2 * rows]
        self.last = long[:rows]
        self._index = long[2 * rows : 3 * rows]
        self._own = np.arange(rows, 2 * rows, dtype=np.int64)
        self._all = DecodeRows(
            input_ids=torch.zeros(rows, dtype=torch.int64, device=device),
            position=long[3 * rows :],
            page_table=torch.zeros((rows, pages), dtype=torch.int32, device=device),
            window=short[rows:].view(rows, window_pages),
            ring=short[:rows],
        )
        self._all.position.fill_(-1)
        self._index.copy_(torch.from_numpy(self._own))

    @property
    def on_cuda(self) -> bool:
        """Whether they are on a CUDA device."""
        return self._head.is_cuda

    def first(self, count: int) -> DecodeRows:
        """Return the inputs of `count` rows; what was filled in is read when this runs.

        It launches the reading of the tokens: inside a graph, it is part of the graph.
        """
        every = self._all
        ids = every.input_ids[:count]
        torch.index_select(self._known, 0, self._index[:count], out=ids)
        return DecodeRows(
            input_ids=ids,
            position=every.position[:count],
            page_table=every.page_table[:count],
            window=every.window[:count],
            ring=every.ring[:count],
        )

    def fill(self, rows: PlanRows, tables: LineTables, *, page_size: int) -> None:
        """Copy a decode step's inputs to the device; rows past its own are padding.

        rows  of one token each

        Raises ValueError for more rows than there are.
        """
        count = len(rows.line)
        if count > self.rows:
            raise ValueError(f"{count} rows, and buffers for {self.rows}")
        host = self._sets[self._turn]
        self._turn = (self._turn + 1) % _SETS
        host.wait()
        for array, values, rest in (
            (host.ids, rows.ids, 0),
            (host.index, np.where(rows.from_device, rows.line, self._own[:count]), 0),
            (host.position, rows.start, -1),
            (host.ring, tables.state[rows.line], 0),
            (host.window, tables.window[rows.line], 0),
        ):
            array[:count] = values
            array[count:] = rest
        self._head.copy_(host.head, non_blocking=True)
        columns = div_ceil(int(rows.end.max(initial=0)), page_size)
        table = host.table[: count * columns].view(count, columns)
        np.take(tables.pages[:, :columns], rows.line, axis=0, out=table.numpy(), mode="clip")
        self._all.page_table[:count, :columns].copy_(table, non_blocking=True)
        host.launched()


def _head_bytes(rows: int, window_pages: int) -> int:
    return rows * (3 * _WORD + 4 * (1 + window_pages))
