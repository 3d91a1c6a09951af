"""Drives a network without windows and state, and without a scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from layers.models.contract import Network
from layers.steps.decode_rows import DecodeRows
from layers.steps.forward_batch import ForwardBatch, Forwarded
from mem_cache.spec import PoolSizes
from tests.testing.compare import assert_same_bits


@dataclass
class PagedRow:
    """One sequence: its tokens, how many are computed, and its pages."""

    tokens: list[int]
    done: int = 0
    pages: list[int] = field(default_factory=list)


# Rows and columns of page tables that a decode step has and does not need.
PADDING, SPARE_PAGES = 3, 2


def page_table(rows: Sequence[PagedRow]) -> Tensor:
    """Return the pages of rows, [n, P] int32, 0 behind the last one of each."""
    table = torch.zeros((len(rows), max(len(row.pages) for row in rows)), dtype=torch.int32)
    for i, row in enumerate(rows):
        table[i, : len(row.pages)] = torch.tensor(row.pages)
    return table


def chunk_batch(chunks: Sequence[tuple[PagedRow, int]]) -> ForwardBatch:
    """Return a step that computes each row up to a position; the rows have their pages."""
    count = [stop - row.done for row, stop in chunks]
    start = torch.tensor([row.done for row, _ in chunks])
    none = torch.zeros((len(chunks), 1), dtype=torch.int32)
    return ForwardBatch(
        input_ids=torch.tensor([t for row, stop in chunks for t in row.tokens[row.done : stop]]),
        chunk_start=start,
        chunk_len=torch.tensor(count),
        page_table=page_table([row for row, _ in chunks]),
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
    """A network and its pools, which begin as NaN, or as other numbers that nobody may read.

    There is room for 256 tokens in each of `pages`, of as many pages of the network as that takes.
    """

    def __init__(self, network: Network, *, pages: int = 32, garbage: float = torch.nan) -> None:
        self._network, self._size = network, network.cache.tree.page_size
        pages = pages * 256 // self._size
        self._pools = network.pools(PoolSizes(pages, 0, 0))
        for tensor in self._pools.tensors().values():
            # As bytes these are NaN in every format of numbers, too.
            tensor.fill_(garbage if tensor.is_floating_point() else 255)
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
        made = self.forwarded(chunks)
        assert bool(made.finite.all())
        return made.logits

    def forwarded(self, chunks: Sequence[tuple[PagedRow, int]]) -> Forwarded:
        """Compute each row up to a position."""
        self._give_pages(chunks)
        batch = chunk_batch(chunks)
        made = self._network.prefill(batch, self._pools)
        for row, stop in chunks:
            row.done = stop
        return made

    def _give_pages(self, chunks: Sequence[tuple[PagedRow, int]]) -> None:
        """Give rows the pages up to a position."""
        for row, stop in chunks:
            while len(row.pages) * self._size < stop:
                row.pages.append(self._free.pop())

    def inputs(self, rows: Sequence[PagedRow], device: torch.device) -> DecodeRows:
        """Return the inputs of a step of the next token of each row, with padding."""
        self._give_pages([(row, row.done + 1) for row in rows])
        table = page_table(rows)
        inputs = DecodeRows.empty(
            len(rows) + PADDING, pages=table.shape[1] + SPARE_PAGES, window_pages=1, device=device
        )
        inputs.page_table[: len(rows), : table.shape[1]] = table
        for i, row in enumerate(rows):
            inputs.input_ids[i], inputs.position[i] = row.tokens[row.done], row.done
        return inputs

    def decode(self, rows: Sequence[PagedRow], device: torch.device) -> Tensor:
        """Compute the next token of each row as a decode step; return logits, [n, vocab]."""
        network: Any = self._network
        logits = network.decode(self.inputs(rows, device), self._pools)
        for row in rows:
            row.done += 1
        return logits[: len(rows)]

    @property
    def pools(self) -> Any:
        """Return the pools of the network's kind."""
        return self._pools

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


def assert_same_bits_anywhere(made: Network, prompt: list[int], other: list[int]) -> None:
    """Hold a token's logits to the same bits in any chunk, beside others, and from the cache.

    prompt  600 tokens
    other   300
    """
    rig = PageRig(made, pages=64)
    whole = PagedRow(prompt)
    want = rig.prefill(whole, 2048)

    for chunk in (1, 64, 255, 257):
        start = PagedRow(prompt[:20] if chunk == 1 else prompt)
        got = rig.prefill(start, chunk)
        assert_same_bits(got, rig.prefill(PagedRow(start.tokens), 2048))
    for at in (1, 256, 511, 599):
        assert_same_bits(rig.prefill(rig.fork(whole, prompt, at), 100), want)
    one, two = rig.fork(whole, prompt, 598), PagedRow(other)
    rig.step([(two, 299), (one, 599)])
    both = rig.step([(one, 600), (two, 300)])
    assert_same_bits(both[0], want)
    assert_same_bits(both[1], rig.prefill(PagedRow(other), 2048))
