"""Drives a network without windows and state, and without a scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from layers.models.contract import Network
from layers.steps.forward_batch import ForwardBatch
from mem_cache.spec import PoolSizes


@dataclass
class PagedRow:
    """One sequence: its tokens, how many are computed, and its pages."""

    tokens: list[int]
    done: int = 0
    pages: list[int] = field(default_factory=list)


def chunk_batch(chunks: Sequence[tuple[PagedRow, int]]) -> ForwardBatch:
    """Return a step that computes each row up to a position; the rows have their pages."""
    count = [stop - row.done for row, stop in chunks]
    table = torch.zeros((len(chunks), max(len(row.pages) for row, _ in chunks)))
    for i, (row, _) in enumerate(chunks):
        table[i, : len(row.pages)] = torch.tensor(row.pages)
    start = torch.tensor([row.done for row, _ in chunks])
    none = torch.zeros((len(chunks), 1), dtype=torch.int32)
    return ForwardBatch(
        input_ids=torch.tensor([t for row, stop in chunks for t in row.tokens[row.done : stop]]),
        chunk_start=start,
        chunk_len=torch.tensor(count),
        page_table=table.to(torch.int32),
        window=none,
        ring=none[:, 0],
        window_from=start * 0,
        write_from=start,
        save_row=torch.arange(len(chunks)),
        save_position=torch.tensor([stop for _, stop in chunks]),
        save_ring=none[:, 0],
        save_window=none,
        logit_tokens=torch.tensor(count).cumsum(0) - 1,
    )


class PageRig:
    """A network and its pools, which begin as NaN."""

    def __init__(self, network: Network, *, pages: int = 32) -> None:
        self._network, self._size = network, network.cache.tree.page_size
        self._pools = network.pools(PoolSizes(pages, 0, 0))
        for tensor in self._pools.tensors().values():
            # As bytes these are NaN in every format of numbers, too.
            tensor.fill_(torch.nan if tensor.is_floating_point() else 255)
        self._free = list(range(pages, 0, -1))

    def fork(self, row: PagedRow, tokens: Sequence[int], at: int) -> PagedRow:
        """Return a row that goes on at `at` from what another has computed."""
        whole, rest = divmod(at, self._size)
        pages = row.pages[:whole]
        if rest:
            pages.append(self._free.pop())
            self._pools.copy_full_pages([(row.pages[whole], pages[-1])])
        return PagedRow(list(tokens), at, pages)

    def step(self, chunks: Sequence[tuple[PagedRow, int]]) -> Tensor:
        """Compute each row up to a position; return the logits of each last token, [n, vocab]."""
        for row, stop in chunks:
            while len(row.pages) * self._size < stop:
                row.pages.append(self._free.pop())
        batch = chunk_batch(chunks)
        made = self._network.prefill(batch, self._pools)
        assert bool(made.finite.all())
        for row, stop in chunks:
            row.done = stop
        return made.logits

    def prefill(self, row: PagedRow, chunk: int) -> Tensor:
        """Compute all tokens of a row in chunks; return the logits of the last one, [vocab]."""
        logits = torch.empty(0)
        while row.done < len(row.tokens):
            logits = self.step([(row, min(len(row.tokens), row.done + chunk))])[0]
        return logits

    def greedy(self, tokens: Sequence[int], new: int, *, chunk: int = 1 << 20) -> list[int]:
        """Return the `new` likeliest tokens after a prompt."""
        row = PagedRow(list(tokens))
        for _ in range(new):
            row.tokens.append(int(self.prefill(row, chunk).argmax()))
        return row.tokens[len(tokens) :]
