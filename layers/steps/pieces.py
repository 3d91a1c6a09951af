"""Small prefill steps with few launches: what tokens do one by one is replayed as CUDA graphs.

Between the attention of one layer and that of the next, no op knows of rows, pages or positions:
its sizes are those of the tokens. A graph for each pair of layers holds all of that for a fixed
number of tokens, and a step pads its own to the next such number. Attention, whose sizes depend on
the batch, is launched op by op.

Graphs read and write fixed places that all layers share, so that nothing is asked of the memory
that they work in.
"""

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from layers.blocks.hyper_connection import BlockResult
from layers.steps.contract import FusedStep, TokenInputs

__all__ = ["PIECE_SIZES", "Capture", "Layer", "Parts", "PrefillPieces", "announced"]

AnyLayer = TypeVar("AnyLayer")

# Up to 64 tokens a step takes as long as reading the weights does, and more are padded by half at
# most. Beyond the last, the device is as busy as the host that launches op by op.
PIECE_SIZES = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)

# The streams and shares of what attention gives, and what attention takes.
Parts = tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]


class Replayed(Protocol):
    """A graph."""

    @property
    def replay(self) -> Callable[[], None]:
        """Return what launches it."""
        ...


class Capture(Protocol):
    """Makes a graph of what a run launches."""

    def __call__(self, run: Callable[[], Tensor]) -> Replayed:
        """Capture it; what the run returns is of fixed place."""
        ...


class Layer(Protocol):
    """A layer in three parts; see `layers.models.deepseek_v4.network.FusedLayer`."""

    @property
    def ratio(self) -> int:
        """Return by how much it compresses: layers of one ratio make parts of the same sizes."""
        ...

    def before(self, before: BlockResult, tokens: TokenInputs) -> Parts:
        """Return what `after` and `attend` take."""
        ...

    def attend(self, projected: tuple[Tensor, ...], step: FusedStep) -> Tensor:
        """Return what tokens read; `step` writes the pools."""
        ...

    def after(
        self, out: Tensor, streams: Tensor, shares: Tensor, tokens: TokenInputs
    ) -> BlockResult:
        """Return what the layer makes."""
        ...


@dataclass(frozen=True, slots=True)
class _Room:
    """Fixed places for M tokens; `TokenInputs` of the pieces.

    ids        [M] int64
    turns      compressed or not -> [M, 2, R] float32
    streams    [M, N, d]   owed what attention gives
    shares     [M, N + 1, N] float32   of that
    y          [M, d]   what the last layer made
    projected  ratio -> what attention takes
    out        [M, H, 512]   what attention gave
    """

    ids: Tensor
    turns: dict[bool, Tensor]
    streams: Tensor
    shares: Tensor
    y: Tensor
    projected: dict[int, tuple[Tensor, ...]]
    out: Tensor

    @property
    def input_ids(self) -> Tensor:
        return self.ids

    def rotation(self, *, compressed: bool) -> Tensor:
        return self.turns[compressed]

    def first(self, count: int) -> "_Room":
        """Return the places of the first `count` tokens."""
        return _Room(
            self.ids[:count],
            {kind: turn[:count] for kind, turn in self.turns.items()},
            self.streams[:count],
            self.shares[:count],
            self.y[:count],
            {
                ratio: tuple(part[:count] for part in parts)
                for ratio, parts in self.projected.items()
            },
            self.out[:count],
        )


def announced(layers: Sequence[AnyLayer], halfway: Callable[[], None]) -> Iterator[AnyLayer]:
    """Yield the layers; `halfway` is called between the first half of them and the second."""
    half = (len(layers) + 1) // 2
    yield from layers[:half]
    halfway()
    yield from layers[half:]


class PrefillPieces:
    """The graphs of a network's small prefill steps."""

    def __init__(
        self,
        embed: Callable[[Tensor], BlockResult],
        layers: Sequence[Layer],
        *,
        rotated: int,
        sizes: Sequence[int],
        capture: Capture,
        device: torch.device,
    ) -> None:
        """Capture the pieces of all sizes, the largest first.

        embed    [T] token ids -> what the first layer takes
        rotated  R, channels of a head that are rotated
        sizes    numbers of tokens, ascending
        """
        self._embed, self._layers, self._sizes = embed, layers, tuple(sizes)
        self._room = self._made(self._sizes[-1], rotated, device)
        self._graphs: dict[int, list[Replayed]] = {}
        pieces = range(len(layers) + 1)
        for size in self._sizes[::-1]:
            room = self._room.first(size)
            # What is compiled or loaded at first use is so before the capture, which forbids it.
            for index in pieces:
                self._run(room, index)
            self._graphs[size] = [
                capture(lambda index=index, room=room: self._run(room, index)) for index in pieces
            ]

    def hold(self, step: FusedStep) -> bool:
        """Say whether a step is small enough."""
        return 0 < step.input_ids.shape[0] <= self._sizes[-1]

    def run(self, step: FusedStep, layers: Iterable[Layer]) -> BlockResult:
        """Run a step and return what the last layer makes, there until the next step.

        layers  those of the graphs, asked for as their turn comes
        """
        count = step.input_ids.shape[0]
        size = self._sizes[bisect.bisect_left(self._sizes, count)]
        room = self._room.first(count)
        room.ids.copy_(step.input_ids)
        for kind, turn in room.turns.items():
            turn.copy_(step.rotation(compressed=kind))
        if count < size:
            # Tokens that pad the step are alike, and so go to the same few experts.
            self._room.ids[count:size].zero_()
            self._room.out[count:size].zero_()
        *pieces, last = self._graphs[size]
        for piece, layer in zip(pieces, layers, strict=True):
            piece.replay()
            room.out.copy_(layer.attend(room.projected[layer.ratio], step))
        last.replay()
        return BlockResult(room.y, room.streams, room.shares)

    def _run(self, room: _Room, index: int) -> Tensor:
        """Launch what lies between the attention of the layer before `index` and its own."""
        if index:
            before = self._layers[index - 1].after(room.out, room.streams, room.shares, room)
        else:
            before = self._embed(room.ids)
        if index < len(self._layers):
            layer = self._layers[index]
            (streams, shares), projected = layer.before(before, room)
            for place, part in zip(room.projected[layer.ratio], projected, strict=True):
                place.copy_(part)
        else:
            y, streams, shares = before.take()
            room.y.copy_(y)
        room.shares.copy_(shares)
        return room.streams.copy_(streams)

    def _made(self, most: int, rotated: int, device: torch.device) -> _Room:
        """Return zeros in the shapes of what layers make of `most` tokens."""
        ids = torch.zeros(most, dtype=torch.int64, device=device)
        turns = {
            layer.ratio > 0: torch.zeros((most, 2, rotated), dtype=torch.float32, device=device)
            for layer in self._layers
        }
        y, streams, shares = map(_zeros, self._embed(ids).take())
        room = _Room(ids, turns, streams, shares, y, {}, ids)
        for layer in {layer.ratio: layer for layer in self._layers}.values():
            _, projected = layer.before(self._embed(ids), room)
            room.projected[layer.ratio] = tuple(map(_zeros, projected))
        ((q, *_), *_) = room.projected.values()
        return replace(room, out=torch.zeros_like(q))


def _zeros(one: Tensor) -> Tensor:
    return torch.zeros(one.shape, dtype=one.dtype, device=one.device)
