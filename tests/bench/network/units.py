"""Pool units of rows that share nothing, and the prefill steps that fill them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jit_kernels.paged_rows import gather_rows, store_rows
from layers.models.deepseek_v4.pool_spec import PoolSpec
from layers.models.deepseek_v4.pools import KvPools
from layers.steps.decode_step import DecodeRows
from layers.steps.forward_batch import ForwardBatch
from mem_cache.spec import PoolSizes, div_ceil

__all__ = ["Chunk", "RowUnits", "copy_row", "forward_batch", "packed_steps"]


@dataclass(frozen=True, slots=True)
class RowUnits:
    """Which units R rows own; pages lie scattered, as they do in a server that has run a while.

    page_table  [R, P] int32
    window      [R, W] int32
    ring        [R] int32
    """

    page_table: Tensor
    window: Tensor
    ring: Tensor

    @classmethod
    def scattered(
        cls, spec: PoolSpec, *, rows: int, tokens: int, device: torch.device
    ) -> tuple["RowUnits", KvPools]:
        """Return units for `rows` rows of `tokens` tokens each, and pools of just these units."""
        pages, slots = div_ceil(tokens, spec.tree.page_size), spec.tree.window_pages

        def deal(*shape: int) -> Tensor:
            count = torch.Size(shape).numel()
            return (torch.randperm(count, device=device) + 1).to(torch.int32).view(shape)

        pools = KvPools(spec, PoolSizes(rows * pages, rows * slots, rows), device)
        return cls(deal(rows, pages), deal(rows, slots), deal(rows)), pools

    def decode_rows(
        self, rows: slice, input_ids: Tensor, *, position: int, pages: int
    ) -> DecodeRows:
        """Return the inputs of a decode step of `rows`, all at `position`.

        pages  columns of the page table, at least those that the rows own
        """
        count = input_ids.shape[0]
        slots = self.window.shape[1]
        inputs = DecodeRows.empty(count, pages=pages, window_pages=slots, device=input_ids.device)
        inputs.input_ids.copy_(input_ids)
        inputs.position.fill_(position)
        inputs.page_table[:, : self.page_table.shape[1]] = self.page_table[rows]
        inputs.window.copy_(self.window[rows])
        inputs.ring.copy_(self.ring[rows])
        return inputs


def copy_row(pools: KvPools, units: RowUnits, source: int, targets: slice) -> None:
    """Copy all that row `source` holds into the units of the rows `targets`."""

    def copy(pool: Tensor, table: Tensor) -> None:
        table = table.to(torch.int64)
        for layer in pool:
            held = layer[table[source]]
            for row in table[targets]:
                layer[row] = held

    for pool in (pools.c4, pools.indexer):
        copy(pool, units.page_table)
    copy(pools.swa, units.window)
    for state in (pools.c4_state, pools.c128_state):
        copy(state, units.ring.unsqueeze(1))
    slots = _c128_slots(units.page_table, pools.spec.tree.page_size)
    for layer in pools.c128:
        records = gather_rows(layer, slots[source], pools.c128_layout)
        for row in slots[targets]:
            store_rows(layer, row, records, pools.c128_layout)


def _c128_slots(page_table: Tensor, page_size: int) -> Tensor:
    """Return the slots of the C128 records of all pages, [R, records] int64."""
    each = max(1, page_size // 128)
    nth = torch.arange(each, device=page_table.device)
    return (page_table.to(torch.int64).unsqueeze(2) * each + nth).flatten(1)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions [start, stop) of a row in one step."""

    row: int
    start: int
    stop: int


def packed_steps(*, prompt: int, rows: int, budget: int) -> list[list[Chunk]]:
    """Return the steps of `rows` prompts of one length under a budget of tokens a step.

    They are packed as the scheduler packs prompts of equal length: the oldest first, and what a
    step has left goes to the next.
    """
    steps: list[list[Chunk]] = []
    left = 0
    for row in range(rows):
        start = 0
        while start < prompt:
            if not left:
                steps.append([])
                left = budget
            stop = min(prompt, start + left)
            steps[-1].append(Chunk(row, start, stop))
            left -= stop - start
            start = stop
    return steps


def forward_batch(
    units: RowUnits, chunks: Sequence[Chunk], tokens: Tensor, *, page_size: int
) -> ForwardBatch:
    """Return the prefill step of `chunks`; it computes the logits of each prompt's last token.

    tokens  [R, n] int64, the prompts, in host memory, where the step will be
    """

    def ints(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64)

    rows, stops = ints([chunk.row for chunk in chunks]), ints([chunk.stop for chunk in chunks])
    starts, zeros = ints([chunk.start for chunk in chunks]), torch.zeros_like(stops)
    pages = div_ceil(max(chunk.stop for chunk in chunks), page_size)
    ends = (stops - starts).cumsum(0)
    own: dict[str, Any] = {"window": units.window.cpu()[rows], "ring": units.ring.cpu()[rows]}
    return ForwardBatch(
        input_ids=torch.cat([tokens[c.row, c.start : c.stop] for c in chunks]),
        chunk_start=starts,
        chunk_len=stops - starts,
        page_table=units.page_table.cpu()[rows, :pages].contiguous(),
        **own,
        window_from=zeros,
        write_from=zeros,
        save_row=torch.arange(len(chunks)),
        save_position=stops,
        **{f"save_{name}": tensor for name, tensor in own.items()},
        logit_tokens=(ends - 1)[stops == tokens.shape[1]],
    )
