"""Small prefill steps with few launches: what tokens do one by one is replayed as CUDA graphs.

Between the attention of one layer and that of the next, no op knows of rows, pages or positions:
its sizes are those of the tokens. A graph for each pair of layers holds all of that for a fixed
number of tokens, and a step pads its own to the next such number. Attention, whose sizes depend on
the batch, is launched op by op: inside a graph a layer's calls of its step are noted, and what they
were given is copied to fixed places, which all layers share. After the graph the calls are made.
"""

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from layers.blocks.hyper_connection import BlockResult
from layers.steps.contract import FoldWeights, PoolingWeights, Step, Tokens, Writes

__all__ = ["PIECE_SIZES", "Capture", "PiecewiseLayer", "PiecewiseNetwork", "PrefillPieces"]

# Up to 64 tokens a step takes as long as reading the weights does, and more are padded by half at
# most. Beyond the last, the device is as busy as the host that launches op by op.
PIECE_SIZES = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


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


class PiecewiseLayer(Protocol):
    """A layer in three parts; see `layers.models.deepseek_v4.network.Layer`."""

    def before(self, result: BlockResult, step: Writes) -> tuple[Tensor, Tensor, Tensor]:
        """Write what tokens leave; return queries, and what else `after` takes."""
        ...

    def attend(self, q: Tensor, step: Step) -> Tensor:
        """Return what tokens read, of the shape of `q`."""
        ...

    def after(self, heads: Tensor, streams: Tensor, shares: Tensor, tokens: Tokens) -> BlockResult:
        """Return what the layer makes."""
        ...


class PiecewiseNetwork(Protocol):
    """A network in such layers."""

    @property
    def layers(self) -> Sequence[PiecewiseLayer]:
        """The layers."""
        ...

    def embedded(self, input_ids: Tensor) -> BlockResult:
        """Return what the first layer takes."""
        ...

    def whole(self, result: BlockResult, input_ids: Tensor) -> BlockResult:
        """Return what the last layer made of all tokens, if ranks have shares of it."""
        ...

    def announced(self, halfway: Callable[[], None] | None) -> Iterator[PiecewiseLayer]:
        """Yield the layers; `halfway` is called in the middle."""
        ...


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a step that is made after a graph: some arguments are fixed places, by token."""

    name: str
    layer: int
    places: tuple[Tensor, ...]
    rest: tuple[Any, ...] = ()

    def make(self, step: Step, count: int) -> None:
        """Make it for the first `count` tokens."""
        places = [place[:count] for place in self.places]
        getattr(step, self.name)(self.layer, *places, *self.rest)


class _Places:
    """Fixed places for `most` tokens, made when first asked for; smaller sizes share them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._made: dict[tuple[object, ...], Tensor] = {}

    def of(self, name: str, like: Tensor) -> Tensor:
        """Return the place of this name for as many tokens as `like` [M, ...] has."""
        key = (name, like.shape[1:], like.dtype)
        if key not in self._made:
            shape = (self._most, *like.shape[1:])
            self._made[key] = torch.zeros(shape, dtype=like.dtype, device=like.device)
        return self._made[key][: len(like)]

    def copied(self, name: str, part: Tensor) -> Tensor:
        """Return the same place, with what `part` holds."""
        return self.of(name, part).copy_(part)


class _Inputs:
    """Tokens of a graph, and the calls that its layer makes of a step; a `Writes`."""

    def __init__(self, ids: Tensor, turns: Callable[[bool], Tensor], places: _Places) -> None:
        """Take [M] int64, and what returns rotations [>= M, 2, R] of a kind of layers."""
        self.input_ids, self._turns, self._places = ids, turns, places
        self.calls: list[_Call] = []

    def rotation(self, *, compressed: bool) -> Tensor:
        return self._turns(compressed)[: len(self.input_ids)]

    def store_window(self, layer: int, kv: Tensor, weight: Tensor) -> None:
        self._later("store_window", layer, (kv,), weight)

    def pool(self, layer: int, rows: Tensor, weights: PoolingWeights) -> None:
        self._later("pool", layer, (rows,), weights)

    def fold(self, layer: int, rows: Tensor, weights: FoldWeights) -> None:
        self._later("fold", layer, (rows,), weights)

    def score(self, layer: int, q: Tensor, weights: Tensor) -> None:
        self._later("score", layer, (q, weights))

    def choose(self, layer: int) -> None:
        self._later("choose", layer, ())

    def _later(self, name: str, layer: int, parts: tuple[Tensor, ...], *rest: object) -> None:
        places = [self._places.copied(f"{name} {i}", part) for i, part in enumerate(parts)]
        self.calls.append(_Call(name, layer, tuple(places), rest))


class _Pieces:
    """The graphs for one number of tokens.

    graphs   one more than there are layers
    calls    what each layer asks of a step
    queries  [M, H, D] of the layer whose graph ran last
    heads    [M, H, D] what its tokens have read
    result   y, streams and shares of the last layer
    """

    def __init__(
        self, network: PiecewiseNetwork, inputs: _Inputs, places: _Places, capture: Capture
    ) -> None:
        self._network, self._inputs, self._places = network, inputs, places
        self._carried: tuple[Tensor, Tensor] | None = None
        self.calls: list[list[_Call]] = [[] for _ in network.layers]
        self.result: tuple[Tensor, Tensor, Tensor] | None = None
        indices = range(len(network.layers) + 1)
        # What is compiled or loaded at first use is so before the capture, which forbids it.
        self.queries = self.heads = inputs.input_ids
        for index in indices:
            self._run(index)
        self.graphs = [capture(lambda index=index: self._run(index)) for index in indices]
        self._carried = None

    def _run(self, index: int) -> Tensor:
        """Launch what lies between the attention of the layer before `index` and its own."""
        layers, inputs, places = self._network.layers, self._inputs, self._places
        if index:
            assert self._carried is not None
            result = layers[index - 1].after(self.heads, *self._carried, inputs)
        else:
            result = self._network.embedded(inputs.input_ids)
        if index == len(layers):
            y, streams, shares = self._network.whole(result, inputs.input_ids).take()
            y = places.copied("y", y)
            self.result = y, places.copied("streams", streams), places.copied("shares", shares)
            return y
        inputs.calls = self.calls[index] = []
        q, *carried = layers[index].before(result, inputs)
        self._carried = (carried[0], carried[1])
        self.queries, self.heads = places.copied("q", q), places.of("heads", q)
        return self.queries


class PrefillPieces:
    """The graphs of a network's small prefill steps."""

    def __init__(
        self,
        network: PiecewiseNetwork,
        *,
        rotated: int,
        sizes: Sequence[int],
        capture: Capture,
        device: torch.device,
    ) -> None:
        """Capture the pieces of all sizes, the largest first.

        rotated  R, channels of a head that are rotated
        sizes    numbers of tokens, ascending
        """
        self._network, self._sizes, most = network, tuple(sizes), sizes[-1]
        self._ids = torch.zeros(most, dtype=torch.int64, device=device)
        # compressed or not -> [most, 2, R] float32, of the kinds that layers ask for
        self._turns: dict[bool, Tensor] = {}

        def turns(compressed: bool) -> Tensor:
            if compressed not in self._turns:
                self._turns[compressed] = torch.zeros((most, 2, rotated), device=device)
            return self._turns[compressed]

        places = _Places(most)
        self._of = {
            size: _Pieces(network, _Inputs(self._ids[:size], turns, places), places, capture)
            for size in self._sizes[::-1]
        }

    def hold(self, tokens: Tokens) -> bool:
        """Say whether a step is small enough."""
        return 0 < tokens.input_ids.shape[0] <= self._sizes[-1]

    def run(self, step: Step, halfway: Callable[[], None] | None = None) -> BlockResult:
        """Run a step and return what the last layer makes, there until the next step."""
        count = step.input_ids.shape[0]
        size = self._sizes[bisect.bisect_left(self._sizes, count)]
        pieces = self._of[size]
        self._ids[:count].copy_(step.input_ids)
        for kind, turn in self._turns.items():
            turn[:count].copy_(step.rotation(compressed=kind))
        if count < size:
            # Tokens that pad the step are alike, and so go to the same few experts.
            self._ids[count:size].zero_()
            pieces.heads[count:].zero_()
        for i, layer in enumerate(self._network.announced(halfway)):
            pieces.graphs[i].replay()
            for call in pieces.calls[i]:
                call.make(step, count)
            pieces.heads[:count].copy_(layer.attend(pieces.queries[:count], step))
        pieces.graphs[-1].replay()
        assert pieces.result is not None
        y, streams, shares = (part[:count] for part in pieces.result)
        return BlockResult(y, streams, shares)
