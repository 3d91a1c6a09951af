"""Small prefill steps in pieces: padded, replayed one after the other, and nothing else changed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from layers.blocks.hyper_connection import BlockResult
from layers.models.deepseek_v4.config import load_config
from layers.models.deepseek_v4.model import QuantisedV4
from layers.steps.contract import FoldWeights, PoolingWeights, Step, Tokens, Writes
from layers.steps.pieces import PrefillPieces
from layers.weights.loading import load_weights
from mem_cache.spec import PoolSizes
from runtime.executor.decode_graphs import CudaCapture
from tests.testing.compare import assert_same_bits
from tests.testing.direct import CPU, Chunk, Direct
from tests.testing.fused_model import FusedModel
from tests.testing.fused_rig import rerun
from tests.testing.recorded_graph import RecordedGraph, record
from tests.testing.tiny_model import cold_batch, plain_weights

SIZES = (4, 16, 24)
# Rows and their chunks, as one prompt after the other: padded, as long as a size, too long.
CHUNKS = (3, 4, 9, 16, 24, 140, 1, 20)
# Sizes of the small network: channels, which are two heads of two; streams; rotated channels.
WIDTH, STREAMS, ROTATED = 4, 3, 4
NORM, SINK = torch.rand(WIDTH), torch.rand(2)
POOLING, FOLD = PoolingWeights(NORM, NORM, NORM), FoldWeights(NORM, NORM)

# Name, layer, tensors by token, the rest.
Call = tuple[str, int, tuple[Tensor, ...], tuple[Any, ...]]


@dataclass
class NotedStep:
    """A step that keeps what it is given; what tokens read depends on all of it."""

    input_ids: Tensor
    plain: Tensor
    compressed: Tensor
    calls: list[Call] = field(default_factory=list[Call])

    @classmethod
    def of(cls, count: int) -> "NotedStep":
        """Return a step of random tokens."""
        plain, compressed = torch.randn(2, count, 2, ROTATED)
        return cls(torch.randint(1, 100, (count,)), plain, compressed)

    def rotation(self, *, compressed: bool) -> Tensor:
        return self.compressed if compressed else self.plain

    def store_window(self, layer: int, kv: Tensor, weight: Tensor) -> None:
        self._note("store_window", layer, (kv,), weight)

    def pool(self, layer: int, rows: Tensor, weights: PoolingWeights) -> None:
        self._note("pool", layer, (rows,), weights)

    def fold(self, layer: int, rows: Tensor, weights: FoldWeights) -> None:
        self._note("fold", layer, (rows,), weights)

    def score(self, layer: int, q: Tensor, weights: Tensor) -> None:
        self._note("score", layer, (q, weights))

    def choose(self, layer: int) -> None:
        self._note("choose", layer, ())

    def attend(self, layer: int, q: Tensor, sink: Tensor) -> Tensor:
        self._note("attend", layer, (q,), sink)
        written = [part.sum() for _, _, parts, _ in self.calls for part in parts]
        return (q + torch.stack(written).sum()).cos()

    def _note(self, name: str, layer: int, parts: tuple[Tensor, ...], *rest: Any) -> None:
        assert all(len(part) == len(self.input_ids) for part in parts)
        self.calls.append((name, layer, tuple(part.clone() for part in parts), rest))


class SmallLayer:
    """A layer in three parts; every third one pools, every third one folds.

    seen  heads and ids that `after` was given last
    """

    def __init__(self, nth: int) -> None:
        self.nth = nth
        self.seen: tuple[Tensor, Tensor] | None = None

    def before(self, result: BlockResult, step: Writes) -> tuple[Tensor, Tensor, Tensor]:
        y, streams, shares = result.take()
        streams = streams / 2 + y.unsqueeze(1) * shares[:, :STREAMS, :1]
        x = streams.sum(1)
        kind = self.nth % 3
        x = x * step.rotation(compressed=kind > 0)[:, 0]
        if kind == 1:
            step.pool(self.nth, x.sin(), POOLING)
        elif kind == 2:
            step.fold(self.nth, x.cos(), FOLD)
        step.store_window(self.nth, x * 3, NORM)
        if kind == 1:
            step.score(self.nth, (x - 1).view(-1, 2, 2), x[:, :2])
            step.choose(self.nth)
        return (x + self.nth).view(-1, 2, 2), streams, (shares + 0.25).sin()

    def attend(self, q: Tensor, step: Step) -> Tensor:
        return step.attend(self.nth, q, SINK)

    def after(self, heads: Tensor, streams: Tensor, shares: Tensor, tokens: Tokens) -> BlockResult:
        self.seen = heads.clone(), tokens.input_ids.clone()
        y = heads.flatten(1) + tokens.input_ids.unsqueeze(1) / 100
        return BlockResult(y.sin(), streams, shares)


class SmallNetwork:
    """A network of five small layers, and what it makes of a step op by op."""

    def __init__(self) -> None:
        self.layers = [SmallLayer(nth) for nth in range(5)]

    def embedded(self, input_ids: Tensor) -> BlockResult:
        rows = (input_ids.unsqueeze(1) * torch.arange(1, WIDTH + 1)).float().sin()
        shares = rows.new_ones((len(rows), STREAMS + 1, STREAMS)) / STREAMS
        return BlockResult(rows, rows.unsqueeze(1).expand(-1, STREAMS, -1), shares)

    def whole(self, result: BlockResult, input_ids: Tensor) -> BlockResult:
        del input_ids
        return result

    def announced(self, halfway: Callable[[], None] | None) -> Iterator[SmallLayer]:
        for nth, layer in enumerate(self.layers):
            if nth == 3 and halfway is not None:
                halfway()
            yield layer

    def run(self, step: Step, halfway: Callable[[], None] | None = None) -> BlockResult:
        """Return what the last layer makes."""
        result = self.embedded(step.input_ids)
        for layer in self.announced(halfway):
            q, streams, shares = layer.before(result, step)
            result = layer.after(layer.attend(q, step), streams, shares, step)
        return result


def small_pieces(capture: Any = record, *sizes: int) -> tuple[SmallNetwork, PrefillPieces]:
    """Return the small network, and its pieces of these sizes."""
    network = SmallNetwork()
    pieces = PrefillPieces(
        network, rotated=ROTATED, sizes=sizes or (4, 8), capture=capture, device=CPU
    )
    return network, pieces


def assert_same_calls(got: NotedStep, want: NotedStep) -> None:
    """Fail unless both were given the same, in the same order."""
    assert [call[:2] for call in got.calls] == [call[:2] for call in want.calls]
    for (name, layer, mine, rest), (_, _, parts, others) in zip(got.calls, want.calls, strict=True):
        for one, other in zip(mine, parts, strict=True):
            assert_same_bits(one, other, what=f"{name} of layer {layer}")
        assert all(one is other for one, other in zip(rest, others, strict=True))


def assert_same_result(got: BlockResult, want: BlockResult) -> None:
    """Fail unless all parts are the same."""
    for name, mine, other in zip(("y", "streams", "shares"), got.take(), want.take(), strict=True):
        assert_same_bits(mine.contiguous(), other.contiguous(), what=name)


@pytest.mark.parametrize("capture", [record, rerun])
def test_a_step_is_given_the_same_in_pieces(capture: Any) -> None:
    network, pieces = small_pieces(capture)

    for count in (3, 8, 1, 5, 4, 8):
        whole = NotedStep.of(count)
        cut = NotedStep(whole.input_ids, whole.plain, whole.compressed)
        assert pieces.hold(cut)
        got, want = pieces.run(cut), network.run(whole)

        assert_same_calls(cut, whole)
        assert_same_result(got, want)


def test_streams_of_a_size_are_not_overwritten_by_a_replay_of_another() -> None:
    _, pieces = small_pieces(record)
    large, small = NotedStep.of(7), NotedStep.of(2)
    want = [part.clone() for part in pieces.run(large).take()]

    pieces.run(small)

    again = NotedStep(large.input_ids, large.plain, large.compressed)
    got = pieces.run(again)

    assert_same_calls(again, large)
    assert_same_result(got, BlockResult(want[0], want[1], want[2]))


def test_halfway_is_called_once_between_the_layers() -> None:
    network, pieces = small_pieces()
    for run in (network.run, pieces.run):
        step, at = NotedStep.of(3), list[int]()

        run(step, lambda step=step, at=at: at.append(step.calls[-1][1]))

        assert at == [2]


def test_what_pads_a_step_is_alike_whatever_was_there_before() -> None:
    network, pieces = small_pieces(rerun)
    pieces.run(NotedStep.of(8))
    before = network.layers[-1].seen
    assert before is not None
    assert before[0].any()

    pieces.run(NotedStep.of(5))

    for layer in network.layers:
        assert layer.seen is not None
        heads, ids = layer.seen
        assert len(ids) == 8
        assert not heads[5:].any()
        assert not ids[5:].any()
        assert ids[:5].all()


def test_a_result_has_only_the_tokens_of_the_step() -> None:
    _, pieces = small_pieces()

    parts = pieces.run(NotedStep.of(5)).take()

    assert [len(part) for part in parts] == [5, 5, 5]


def test_graphs_are_captured_once_a_layer_and_size_the_largest_first() -> None:
    made: list[RecordedGraph] = []

    def noted(run: Callable[[], Tensor]) -> RecordedGraph:
        made.append(record(run))
        lengths.append(len(run()))
        return made[-1]

    lengths: list[int] = []
    network, pieces = small_pieces(noted, 2, 4, 8)

    assert lengths == [size for size in (8, 4, 2) for _ in range(len(network.layers) + 1)]
    assert not pieces.hold(NotedStep.of(0))
    assert not pieces.hold(NotedStep.of(9))
    assert pieces.hold(NotedStep.of(8))


def network(folder: Path, device: torch.device, *, deterministic: bool = False) -> QuantisedV4:
    made = QuantisedV4(load_config(folder), device, experts="fp8", deterministic=deterministic)
    load_weights(made, folder, progress=False)
    return made


def capture_pieces(made: QuantisedV4, *sizes: int) -> None:
    made.capture_prefill(sizes, CudaCapture() if made.device.type == "cuda" else rerun)


def prefilled(made: QuantisedV4, chunks: tuple[int, ...]) -> Tensor:
    """Return the logits of every position of a row that is prefilled in these chunks."""
    direct = Direct(FusedModel(made, decodes=False), "fp8", device=made.device)
    direct.poison()
    ids = [(7 * k * k + 11) % made.config.vocab_size for k in range(sum(chunks))]
    row, parts, stop = direct.row(ids), list[Tensor](), 0
    for chunk in chunks:
        first, stop = stop, stop + chunk
        parts.append(direct.prefill(row, stop=stop, logits=range(first, stop)))
    return torch.cat(parts)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of tokens of every step that is run in pieces from here on."""
    whole, seen = PrefillPieces.run, list[int]()

    def noted(self: PrefillPieces, step: Step, *rest: Any) -> BlockResult:
        seen.append(step.input_ids.shape[0])
        return whole(self, step, *rest)

    monkeypatch.setattr(PrefillPieces, "run", noted)
    return seen


def assert_alike(got: Tensor, want: Tensor) -> None:
    """A step of another size sums in another order on a GPU, and in the same on the CPU."""
    if got.device.type == "cpu":
        assert torch.equal(got, want)
    error = (got - want).square().mean().sqrt() / want.std()
    assert float(error) < 0.05


def test_steps_in_pieces_give_the_same_logits(
    short_folder: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, seen = network(short_folder, device), counted(monkeypatch)
    plain = prefilled(made, CHUNKS)
    assert not seen

    capture_pieces(made, *SIZES)
    got = prefilled(made, CHUNKS)
    capture_pieces(made)
    again = prefilled(made, CHUNKS)

    assert seen == [chunk for chunk in CHUNKS if chunk <= SIZES[-1]]
    assert_alike(got, plain)
    assert_alike(again, plain)


def test_a_network_in_pieces_says_once_that_half_is_launched(
    short_folder: Path, device: torch.device
) -> None:
    made, calls = network(short_folder, device), list[int]()
    capture_pieces(made, 16)
    pools = made.pools(PoolSizes(full_pages=2, swa_pages=4, states=1))

    with torch.device("cpu"):
        made.prefill(cold_batch(9), pools, halfway=lambda: calls.append(1))

    assert calls == [1]


@pytest.mark.parametrize("sizes", [(), (8, 16)], ids=["whole", "pieces"])
def test_a_row_with_a_broken_token_is_not_finite_and_the_others_are(
    short_folder: Path, device: torch.device, sizes: tuple[int, ...]
) -> None:
    made = network(short_folder, device)
    capture_pieces(made, *sizes)
    plain_weights(made.named_weights())["embed.weight"][3] = torch.nan
    direct = Direct(FusedModel(made, decodes=False), "fp8", device=made.device)
    direct.poison()
    direct.may_be_broken = True
    rows = [direct.row(ids) for ids in ([5, 6, 7], [8, 3, 9, 10, 11], [12, 13])]

    logits, _ = direct.step([Chunk(row, len(row.tokens), logits=[0]) for row in rows])

    assert direct.finite == [True, False, True]
    assert logits.isfinite().all(-1).tolist() == [True, True, True]


def test_a_deterministic_network_keeps_its_bits_whatever_pads_a_step(
    short_folder: Path, device: torch.device
) -> None:
    made = network(short_folder, device, deterministic=True)
    plain = prefilled(made, CHUNKS)

    capture_pieces(made, *SIZES)

    assert torch.equal(prefilled(made, CHUNKS), plain)
