"""Small prefill steps in pieces: padded, replayed one after the other, and nothing else changed."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from layers.blocks.hyper_connection import BlockResult
from layers.models.deepseek_v4.config import load_config
from layers.models.deepseek_v4.network import FusedLayer, FusedV4
from layers.steps.contract import FusedStep
from layers.steps.pieces import PrefillPieces, announced
from layers.weights.loading import load_weights
from runtime.executor.decode_graphs import CudaCapture
from tests.testing.direct import Chunk, Direct
from tests.testing.fused_model import FusedModel
from tests.testing.fused_rig import rerun

SIZES = (4, 16, 24)
# Rows and their chunks, as one prompt after the other: padded, as long as a size, too long.
CHUNKS = (3, 4, 9, 16, 24, 140, 1, 20)


def network(folder: Path, device: torch.device, *, deterministic: bool = False) -> FusedV4:
    made = FusedV4(load_config(folder), device, experts="fp8", deterministic=deterministic)
    load_weights(made, folder, progress=False)
    return made


def capture_pieces(made: FusedV4, *sizes: int) -> None:
    made.capture_prefill(sizes, CudaCapture() if made.device.type == "cuda" else rerun)


def prefilled(made: FusedV4, chunks: tuple[int, ...]) -> Tensor:
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

    def noted(self: PrefillPieces, step: FusedStep, layers: Iterable[FusedLayer]) -> BlockResult:
        seen.append(step.input_ids.shape[0])
        return whole(self, step, layers)

    monkeypatch.setattr(PrefillPieces, "run", noted)
    return seen


def assert_alike(got: Tensor, want: Tensor) -> None:
    """A step of another size sums in another order on a GPU, and in the same on the CPU."""
    if got.device.type == "cpu":
        assert torch.equal(got, want)
    error = (got - want).square().mean().sqrt() / want.std()
    assert float(error) < 0.05


def test_steps_in_pieces_give_the_same_logits(
    stand_in: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, seen = network(stand_in, device), counted(monkeypatch)
    plain = prefilled(made, CHUNKS)
    assert not seen

    capture_pieces(made, *SIZES)
    got = prefilled(made, CHUNKS)
    capture_pieces(made)
    again = prefilled(made, CHUNKS)

    assert seen == [chunk for chunk in CHUNKS if chunk <= SIZES[-1]]
    assert_alike(got, plain)
    assert_alike(again, plain)


def test_a_step_says_when_half_of_its_layers_are_launched(
    stand_in: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, said = network(stand_in, device), list[str]()
    for name in ("__call__", "attend"):  # whole, and between pieces
        whole = getattr(FusedLayer, name)

        def noted(*args: object, whole: Callable[..., Tensor] = whole) -> Tensor:
            said.append("layer")
            return whole(*args)

        monkeypatch.setattr(FusedLayer, name, noted)
    monkeypatch.setattr(made, "prefill", partial(made.prefill, halfway=lambda: said.append("half")))
    count = made.config.num_hidden_layers
    wanted = ["layer"] * ((count + 1) // 2) + ["half"] + ["layer"] * (count // 2)
    prefilled(made, (9,))
    assert said == wanted

    capture_pieces(made, 16)
    said.clear()
    prefilled(made, (9,))
    assert said == wanted


@pytest.mark.parametrize("sizes", [(), (8, 16)], ids=["whole", "pieces"])
def test_a_row_with_a_broken_token_is_not_finite_and_the_others_are(
    stand_in: Path, device: torch.device, sizes: tuple[int, ...]
) -> None:
    made = network(stand_in, device)
    capture_pieces(made, *sizes)
    embedding = dict(made.named_weights())["embed.weight"]
    assert isinstance(embedding, Tensor)
    embedding[3] = torch.nan
    direct = Direct(FusedModel(made, decodes=False), "fp8", device=made.device)
    direct.poison()
    direct.may_be_broken = True
    rows = [direct.row(ids) for ids in ([5, 6, 7], [8, 3, 9, 10, 11], [12, 13])]

    logits, _ = direct.step([Chunk(row, len(row.tokens), logits=[0]) for row in rows])

    assert direct.finite == [True, False, True]
    assert logits.isfinite().all(-1).tolist() == [True, True, True]


def test_layers_are_announced_as_they_are_asked_for() -> None:
    said: list[int] = []
    for layer in announced([1, 2, 3], lambda: said.append(0)):
        said.append(layer)

    assert said == [1, 2, 0, 3]


def test_a_deterministic_network_keeps_its_bits_whatever_pads_a_step(
    stand_in: Path, device: torch.device
) -> None:
    made = network(stand_in, device, deterministic=True)
    plain = prefilled(made, CHUNKS)

    capture_pieces(made, *SIZES)

    assert torch.equal(prefilled(made, CHUNKS), plain)


def test_what_pads_a_step_is_alike(stand_in: Path, device: torch.device) -> None:
    made = network(stand_in, device)
    capture_pieces(made, 24)
    prefilled(made, (24,))

    prefilled(made, (3,))

    room = made._pieces._room  # type: ignore[union-attr]  # pyright: ignore
    assert bool((room.ids[3:] == 0).all())
    streams = BlockResult(room.y, room.streams, room.shares).mixed()
    assert bool(streams.isfinite().all())
    assert_alike(streams[3:].float(), streams[3:4].float().expand(21, -1, -1))
