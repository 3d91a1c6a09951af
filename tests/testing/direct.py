"""Drives the network without a scheduler: pages are handed out by hand, and never twice at once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from layers.models.deepseek_v4.config import ModelConfig, load_config, pool_spec
from layers.models.deepseek_v4.model import ReferenceV4
from layers.models.deepseek_v4.pool_spec import RecordFormat
from layers.models.deepseek_v4.pools import KvPools
from layers.steps.forward_batch import ForwardBatch, Forwarded
from layers.weights.loading import load_weights
from mem_cache.spec import PoolSizes, TreeSpec

CPU = torch.device("cpu")


class Units:
    """Units 1..count of one pool, each free or held so many times."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count, 0, -1))
        self._held: dict[int, int] = {}

    def take(self) -> int:
        """Return a free unit, held once."""
        unit = self._free.pop()
        self._held[unit] = 1
        return unit

    def share(self, units: Iterable[int]) -> None:
        """Hold units once more."""
        for unit in units:
            self._held[unit] += 1

    def give(self, units: Iterable[int]) -> None:
        """Let go of units; what nobody holds is free again."""
        for unit in units:
            self._held[unit] -= 1
            if not self._held[unit]:
                del self._held[unit]
                self._free.append(unit)


@dataclass
class Point:
    """A resume point: the window and the ring as they were before `position`."""

    position: int
    window: dict[int, int]
    ring: int


@dataclass
class Row:
    """One sequence: its tokens, how many are computed, and what it holds.

    window  slot of the ring -> SWA page
    """

    tokens: list[int]
    done: int = 0
    pages: list[int] = field(default_factory=list)
    window: dict[int, int] = field(default_factory=dict)
    ring: int = 0
    window_from: int = 0
    write_from: int = 0


@dataclass
class Chunk:
    """What a step computes of a row.

    stop    positions [row.done, stop) are computed
    points  positions in (row.done, stop] to make resume points at
    logits  positions whose logits are wanted
    """

    row: Row
    stop: int
    points: Sequence[int] = ()
    logits: Sequence[int] = ()


class Network(Protocol):
    """Whatever runs a forward batch."""

    config: ModelConfig

    def prefill(self, batch: ForwardBatch, pools: KvPools) -> Forwarded | Tensor:
        """Return what the batch asks for; a part of a network returns what it makes alone."""
        ...


class Direct:
    """A network and its pools.

    finite         [n] of the last step's rows, where the network tells
    may_be_broken  rows need not be finite
    """

    def __init__(
        self,
        model: Network,
        record_format: RecordFormat,
        *,
        full_pages: int = 24,
        swa_pages: int = 64,
        rings: int = 24,
        tree: TreeSpec | None = None,
        draft_tokens: int = 0,
        device: torch.device = CPU,
    ) -> None:
        self.model, self.device = model, device
        self.spec = pool_spec(model.config, record_format, tree, draft_tokens=draft_tokens)
        self.tree = self.spec.tree
        self.finite: list[bool] = []
        self.may_be_broken = False
        self.pools = KvPools(self.spec, PoolSizes(full_pages, swa_pages, rings), device)
        self.full, self.swa, self.rings = Units(full_pages), Units(swa_pages), Units(rings)

    def poison(self) -> None:
        """Fill all pools with bytes that are NaN in every format."""
        for tensor in self.pools.tensors().values():
            tensor.view(torch.uint8).fill_(0xFF)

    def row(self, tokens: Sequence[int]) -> Row:
        """Return a new row that has computed nothing."""
        return Row(list(tokens), ring=self.rings.take())

    def resume(self, tokens: Sequence[int], point: Point, pages: Sequence[int]) -> Row:
        """Return a row that goes on at `point`; pages that it may write are copied."""
        position, tree = point.position, self.tree
        row = Row(list(tokens), done=position, ring=self.rings.take(), write_from=position)
        self.pools.copy_states([(point.ring, row.ring, point.position)])
        row.pages = list(pages[: position // tree.page_size])
        self.full.share(row.pages)
        if position % tree.page_size:
            row.pages.append(self.full.take())
            self.pools.copy_full_pages([(pages[len(row.pages) - 1], row.pages[-1])])
        for slot, page in point.window.items():
            row.window[slot] = self.swa.take()
            self.pools.copy_swa_pages([(page, row.window[slot])])
        return row

    def replay(self, tokens: Sequence[int], pages: Sequence[int], start: int, until: int) -> Row:
        """Return a row that computes from `start` again, full pages before `until` being there.

        It writes to the last of `pages` from `until` on.
        """
        row = Row(list(tokens), done=start, ring=self.rings.take())
        row.pages = list(pages)
        self.full.share(pages)
        row.window_from, row.write_from = start, until
        return row

    def release(self, row: Row) -> None:
        """Let go of what a row holds."""
        self.full.give(row.pages)
        self.swa.give(row.window.values())
        self.rings.give([row.ring])

    def step(self, chunks: Sequence[Chunk]) -> tuple[Tensor, list[Point]]:
        """Run one step; return the logits in chunk order, and the resume points."""
        tree = self.tree
        width = max(-(-chunk.stop // tree.page_size) for chunk in chunks)
        table = torch.zeros((len(chunks), width), dtype=torch.int32)
        window = torch.zeros((len(chunks), tree.window_pages), dtype=torch.int32)
        logit_tokens: list[int] = []
        saves: list[tuple[int, Point]] = []
        first = 0
        for i, chunk in enumerate(chunks):
            row = chunk.row
            while len(row.pages) * tree.page_size < chunk.stop:
                row.pages.append(self.full.take())
            table[i, : len(row.pages)] = torch.tensor(row.pages, dtype=torch.int32)[:width]
            window[i] = self._window_row(row.window)
            logit_tokens += [first + position - row.done for position in chunk.logits]
            for slot in range(tree.window_pages_at(chunk.stop)):
                row.window[slot] = row.window.get(slot) or self.swa.take()
            saves.append((i, Point(chunk.stop, row.window, row.ring)))
            saves += [(i, self._new_point(position)) for position in chunk.points]
            first += chunk.stop - row.done
        ids = [t for chunk in chunks for t in chunk.row.tokens[chunk.row.done : chunk.stop]]
        batch = ForwardBatch(
            input_ids=_int64(ids),
            chunk_start=_int64([chunk.row.done for chunk in chunks]),
            chunk_len=_int64([chunk.stop - chunk.row.done for chunk in chunks]),
            page_table=table,
            window=window,
            ring=_int32([chunk.row.ring for chunk in chunks]),
            window_from=_int64([chunk.row.window_from for chunk in chunks]),
            write_from=_int64([chunk.row.write_from for chunk in chunks]),
            save_row=_int64([row for row, _ in saves]),
            save_position=_int64([point.position for _, point in saves]),
            save_ring=_int32([point.ring for _, point in saves]),
            save_window=torch.stack([self._window_row(point.window) for _, point in saves]),
            logit_tokens=_int64(logit_tokens),
        )
        logits = self._forward(_moved(batch, self.device)).cpu()
        points: list[Point] = []
        for i, point in saves:
            row = chunks[i].row
            if point.ring == row.ring:
                row.done = point.position
            else:
                points.append(point)
        return logits, points

    def prefill(
        self, row: Row, *, stop: int | None = None, chunk: int | None = None, logits: Sequence[int]
    ) -> Tensor:
        """Compute a row up to `stop` in chunks; return the logits of `logits`, ascending."""
        parts: list[Tensor] = []
        end = len(row.tokens) if stop is None else stop
        while row.done < end:
            until = min(end, row.done + (chunk or end))
            wanted = [position for position in logits if row.done <= position < until]
            parts.append(self.step([Chunk(row, until, logits=wanted)])[0])
        return torch.cat(parts)

    def decode(self, rows: Sequence[Row]) -> Tensor:
        """Compute the last token of each row; return the logits, one row each."""
        chunks = [Chunk(row, row.done + 1, logits=[row.done]) for row in rows]
        return self.step(chunks)[0]

    def greedy(self, row: Row, logits: Tensor, steps: int) -> tuple[list[int], Tensor]:
        """Return `steps` greedy tokens and the logits that chose them.

        logits  [vocab] of the prompt's last token
        """
        tokens: list[int] = []
        chosen: list[Tensor] = []
        for step in range(steps):
            tokens.append(int(logits.argmax()))
            chosen.append(logits)
            if step + 1 < steps:
                row.tokens.append(tokens[-1])
                logits = self.decode([row])[0]
        return tokens, torch.stack(chosen)

    def _forward(self, batch: ForwardBatch) -> Tensor:
        """Return the logits; note which rows are finite."""
        made = self.model.prefill(batch, self.pools)
        if isinstance(made, Tensor):
            return made
        self.finite = made.finite.tolist()
        assert self.may_be_broken or all(self.finite)
        return made.logits

    def _window_row(self, window: dict[int, int]) -> Tensor:
        result = torch.zeros(self.tree.window_pages, dtype=torch.int32)
        for slot, page in window.items():
            result[slot] = page
        return result

    def _new_point(self, position: int) -> Point:
        slots = range(self.tree.window_pages_at(position))
        window = {slot: self.swa.take() for slot in slots}
        return Point(position, window, self.rings.take())


def load_model(
    folder: Path, dtype: torch.dtype = torch.float32, **overrides: object
) -> ReferenceV4:
    """Return the network of a checkpoint, filled."""
    config: ModelConfig = load_config(folder)
    if overrides:
        config = replace(config, **overrides)  # type: ignore[arg-type]
    model = ReferenceV4(config, CPU, dtype)
    load_weights(model, folder, progress=False)
    return model


def _moved(batch: ForwardBatch, device: torch.device) -> ForwardBatch:
    return ForwardBatch(**{f.name: getattr(batch, f.name).to(device) for f in fields(batch)})


def _int64(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _int32(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)
