"""Drives a network with windows and without state, and without a scheduler."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from layers.models.contract import Network
from layers.steps.decode_rows import DecodeRows
from layers.steps.forward_batch import ForwardBatch, Forwarded
from mem_cache.spec import PoolSizes


@dataclass
class WindowRow:
    """One sequence: its tokens, how many are computed, and what it holds.

    window       SWA pages
    points       position of a resume point -> its SWA pages
    window_from  where a replay began
    write_from   what pages hold already
    """

    tokens: list[int]
    done: int = 0
    pages: list[int] = field(default_factory=list[int])
    window: list[int] = field(default_factory=list[int])
    points: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    window_from: int = 0
    write_from: int = 0


# Rows and columns of page tables that a decode step has and does not need.
PADDING, SPARE_PAGES = 3, 2


class WindowRig:
    """A network and its pools, which begin as NaN, or as other numbers that nobody may read."""

    def __init__(
        self,
        network: Network,
        *,
        pages: int = 64,
        swa_pages: int = 200,
        garbage: float = torch.nan,
    ) -> None:
        self._network, self._tree = network, network.cache.tree
        self._pools = network.pools(PoolSizes(pages, swa_pages, 0))
        for tensor in self._pools.tensors().values():
            tensor.fill_(garbage)
        self._free = list(range(pages, 0, -1))
        self._swa_free = list(range(swa_pages, 0, -1))

    def fork(self, row: WindowRow, tokens: Sequence[int], at: int) -> WindowRow:
        """Return a row that goes on at a resume point of another."""
        made = WindowRow(list(tokens), at, self._pages_until(row, at), self._window())
        self._pools.copy_swa_pages(list(zip(row.points[at], made.window, strict=True)))
        made.write_from = at
        return made

    def replay(self, row: WindowRow, tokens: Sequence[int], at: int) -> WindowRow:
        """Return a row that goes on at `at` without a point, computing the windows before again."""
        start = max(0, at - self._network.cache.replay_tokens)
        made = WindowRow(list(tokens), start, self._pages_until(row, at), self._window())
        made.window_from, made.write_from = start, at
        return made

    def _pages_until(self, row: WindowRow, at: int) -> list[int]:
        whole, rest = divmod(at, self._tree.page_size)
        pages = row.pages[:whole]
        if rest:
            pages.append(self._free.pop())
            self._pools.copy_full_pages([(row.pages[whole], pages[-1])])
        return pages

    def _give_pages(self, row: WindowRow, stop: int) -> None:
        """Give a row a window, and pages up to a position."""
        row.window = row.window or self._window()
        while len(row.pages) * self._tree.page_size < stop:
            row.pages.append(self._free.pop())

    def _window(self) -> list[int]:
        return [self._swa_free.pop() for _ in range(self._tree.window_pages)]

    def step(
        self,
        chunks: Sequence[tuple[WindowRow, int]],
        points: Iterable[int] = (),
        *,
        move: bool = False,
    ) -> Tensor:
        """Compute each row up to a position; return the logits of each last token, [n, vocab].

        points  positions in every chunk to leave resume points at
        move    rows go on in other SWA pages
        """
        made = self.forwarded(chunks, points, move=move)
        assert bool(made.finite.all())
        return made.logits

    def forwarded(
        self,
        chunks: Sequence[tuple[WindowRow, int]],
        points: Iterable[int] = (),
        *,
        move: bool = False,
    ) -> Forwarded:
        """Compute each row up to a position; see `step`."""
        count = [stop - row.done for row, stop in chunks]
        saves, ends = list[tuple[int, int, list[int]]](), list[list[int]]()
        for i, (row, stop) in enumerate(chunks):
            self._give_pages(row, stop)
            ends.append(self._window() if move else row.window)
            saves.append((i, stop, ends[i]))
            for at in points:
                if row.done < at <= stop:
                    row.points[at] = self._window()
                    saves.append((i, at, row.points[at]))
        none = torch.zeros(len(saves), dtype=torch.int32)
        batch = ForwardBatch(
            input_ids=torch.tensor(
                [t for row, stop in chunks for t in row.tokens[row.done : stop]]
            ),
            chunk_start=torch.tensor([row.done for row, _ in chunks]),
            chunk_len=torch.tensor(count),
            page_table=page_table([row for row, _ in chunks]),
            window=torch.tensor([row.window for row, _ in chunks], dtype=torch.int32),
            ring=none[: len(chunks)],
            window_from=torch.tensor([row.window_from for row, _ in chunks]),
            write_from=torch.tensor([row.write_from for row, _ in chunks]),
            save_row=torch.tensor([i for i, _, _ in saves]),
            save_position=torch.tensor([at for _, at, _ in saves]),
            save_ring=none,
            save_window=torch.tensor([window for _, _, window in saves], dtype=torch.int32),
            logit_tokens=torch.tensor(count).cumsum(0) - 1,
        )
        made = self._network.prefill(batch, self._pools)
        for (row, stop), window in zip(chunks, ends, strict=True):
            if move:
                self._swa_free += row.window
            row.done, row.window = stop, window
        return made

    @property
    def pools(self) -> Any:
        """Return the pools of the network's kind."""
        return self._pools

    def inputs(self, rows: Sequence[WindowRow], device: torch.device) -> DecodeRows:
        """Return the inputs of a step of the next token of each row, with padding."""
        for row in rows:
            self._give_pages(row, row.done + 1)
        table, count = page_table(rows), len(rows)
        made = DecodeRows.empty(
            count + PADDING,
            pages=table.shape[1] + SPARE_PAGES,
            window_pages=self._tree.window_pages,
            device=device,
        )
        made.page_table[:count, : table.shape[1]] = table
        made.window[:count] = torch.tensor([row.window for row in rows])
        made.input_ids[:count] = torch.tensor([row.tokens[row.done] for row in rows])
        made.position[:count] = torch.tensor([row.done for row in rows])
        return made

    def decode(self, rows: Sequence[WindowRow], device: torch.device) -> Tensor:
        """Compute the next token of each row as a decode step; return logits, [n, vocab]."""
        network: Any = self._network
        logits = network.decode(self.inputs(rows, device), self._pools)
        for row in rows:
            row.done += 1
        return logits[: len(rows)]

    def prefill(self, row: WindowRow, chunk: int, points: Iterable[int] = ()) -> Tensor:
        """Compute all tokens of a row in chunks; return the logits of the last one, [vocab]."""
        logits = torch.empty(0)
        while row.done < len(row.tokens):
            logits = self.step([(row, min(len(row.tokens), row.done + chunk))], points)[0]
        return logits

    def greedy(self, tokens: Sequence[int], new: int, *, chunk: int = 1 << 20) -> list[int]:
        """Return the `new` likeliest tokens after a prompt."""
        row = WindowRow(list(tokens))
        for _ in range(new):
            row.tokens.append(int(self.prefill(row, chunk).argmax()))
        return row.tokens[len(tokens) :]


def page_table(rows: Sequence[WindowRow]) -> Tensor:
    """Return the pages of rows, [n, P] int32, 0 behind the last one of each."""
    table = torch.zeros((len(rows), max(len(row.pages) for row in rows)), dtype=torch.int32)
    for i, row in enumerate(rows):
        table[i, : len(row.pages)] = torch.tensor(row.pages)
    return table
