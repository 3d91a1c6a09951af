"""A network shared by ranks: all compute the same, and what one rank computes alone."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from layers.models.contract import Settings
from layers.models.deepseek_v4.config import ModelConfig, load_config
from layers.models.deepseek_v4.model import QuantisedV4, ReferenceV4
from layers.models.deepseek_v4.pool_spec import RecordFormat
from layers.parallel.ranks import OneRank, Ranks
from layers.parallel.shares import UnevenShares
from layers.weights.loading import fill_dummy, load_weights
from tests.testing.compare import Bounds, assert_close
from tests.testing.direct import CPU, Chunk, Direct
from tests.testing.fused_rig import SHORT, QuantisedModel
from tests.testing.stand_in.folder import write_stand_in
from tests.testing.thread_ranks import in_ranks
from tests.testing.tiny_model import CONFIG, PACKED, prompt

Network = ReferenceV4 | QuantisedV4
Maker = Callable[[Ranks], Network]

VOCAB = 96
# Of logits of one token, relative to their spread.
MOST_OFF = 0.2
LONG, SHORTER, POINT, NEW = 290, 45, 150, 4


@dataclass(frozen=True, slots=True)
class Found:
    """Logits of all steps, the tokens that were chosen, and the bytes of the pools."""

    logits: Tensor
    tokens: list[list[int]]
    pools: dict[str, Tensor]


def sized(config: ModelConfig, **change: int) -> ModelConfig:
    """Return the configuration with a vocabulary that ranks can share."""
    return dataclasses.replace(config, vocab_size=VOCAB, **change)  # type: ignore[arg-type]


def tokens_of(length: int, seed: int) -> list[int]:
    return [token % VOCAB for token in prompt(length, seed)]


def script(network: Network, record_format: RecordFormat, *, greedy: bool = True) -> Found:
    """Prefill two rows in chunks, leave a resume point, go on there, then decode all rows.

    greedy  rows go on with the tokens that are chosen, else with tokens that are given
    """
    direct = Direct(network, record_format)
    direct.poison()
    rows = [direct.row(tokens_of(LONG, 1)), direct.row(tokens_of(SHORTER, 2))]
    first, points = direct.step(
        [Chunk(rows[0], 200, points=(POINT,), logits=(0, 127, 199)), Chunk(rows[1], 7, logits=(6,))]
    )
    ends = [Chunk(row, len(row.tokens), logits=(len(row.tokens) - 1,)) for row in rows]
    last, _ = direct.step(ends)
    tail = [*rows[0].tokens[:POINT], *tokens_of(20, 3)]
    again = direct.resume(tail, points[0], rows[0].pages)
    resumed = direct.prefill(again, chunk=11, logits=[len(tail) - 1])
    rows.append(again)
    step, parts = torch.cat([last, resumed]), [first, last, resumed]
    tokens: list[list[int]] = [[] for _ in rows]
    for new in range(NEW):
        for row, told, chosen in zip(rows, tokens, step.argmax(1).tolist(), strict=True):
            row.tokens.append(chosen if greedy else new)
            told.append(chosen)
        step = direct.decode(rows)
        parts.append(step)
    pools = {name: t.view(torch.uint8).clone() for name, t in direct.pools.tensors().items()}
    return Found(torch.cat(parts), tokens, pools)


def shared(make: Maker, record_format: RecordFormat, world: int, *, greedy: bool = True) -> Found:
    """Return what ranks find, which is the same to the bit, pools too."""
    found: Sequence[Found] = in_ranks(
        world, lambda ranks: script(make(ranks), record_format, greedy=greedy)
    )
    for one in found[1:]:
        assert torch.equal(one.logits, found[0].logits)
        assert one.tokens == found[0].tokens
        for name, pool in one.pools.items():
            assert torch.equal(pool, found[0].pools[name]), name
    return found[0]


def assert_shared(make: Maker, record_format: RecordFormat, world: int, bounds: Bounds) -> None:
    """Hold what ranks find against one rank: logits within bounds, the same greedy tokens."""
    alone = script(make(OneRank()), record_format)

    found = shared(make, record_format, world)

    assert_close(found.logits, alone.logits, bounds)
    assert found.tokens == alone.tokens


def reference(config: ModelConfig, record_format: RecordFormat, dtype: torch.dtype) -> Maker:
    """Return what makes a rank's network, with the same random weights for all worlds."""

    def make(ranks: Ranks) -> ReferenceV4:
        network = ReferenceV4(config, CPU, dtype, record_format=record_format, ranks=ranks)
        fill_dummy(network, 7)
        return network

    return make


WORLDS = {2: {}, 4: {"num_attention_heads": 8, "o_groups": 4}}
BOUNDS: dict[RecordFormat, float] = {"fp32": 1e-4, "bf16": 0.1, "fp8": 0.3}
# Every format for two ranks, one for four; the others are for those with time.
SHARED = [
    pytest.param(
        world, name, bound, marks=(pytest.mark.slow,) if world > 2 and name != "fp32" else ()
    )
    for world in WORLDS
    for name, bound in BOUNDS.items()
]


@pytest.mark.parametrize(("world", "record_format", "bound"), SHARED)
def test_ranks_compute_what_one_rank_computes(
    world: int, record_format: RecordFormat, bound: float
) -> None:
    """A sum in another order moves a number of a record over the edge of a code now and then."""
    config = sized(PACKED if record_format == "fp8" else CONFIG, **WORLDS[world])

    assert_shared(
        reference(config, record_format, torch.float32), record_format, world, Bounds(atol=bound)
    )


def test_ranks_share_a_network_in_bfloat16() -> None:
    assert_shared(
        reference(sized(CONFIG), "bf16", torch.bfloat16), "bf16", 2, Bounds(atol=1.0, rms=0.05)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose experts are fp4 and have three blocks of channels."""
    made = tmp_path_factory.mktemp("shared")
    return write_stand_in(made, **SHORT, moe_intermediate_size=384)


def quantised(folder: Path, form: str) -> Maker:
    """Return what makes a rank's network over quantised weights, on the CPU."""

    def make(ranks: Ranks) -> QuantisedV4:
        model = QuantisedModel(load_config(folder))
        network = model.build(CPU, Settings(experts=form), ranks)  # type: ignore[arg-type]
        load_weights(network, folder, progress=False)
        return network

    return make


@pytest.mark.usefixtures("dense_weights_once")
@pytest.mark.parametrize("form", ["fp4", pytest.param("fp8", marks=pytest.mark.slow), "both"])
def test_ranks_share_a_checkpoint_that_stays_quantised(folder: Path, form: str) -> None:
    """Where a choice of blocks or experts is close, roundings decide it: few rows are far off."""
    make = quantised(folder, form)
    alone = script(make(OneRank()), "fp8", greedy=False)

    found = shared(make, "fp8", 2, greedy=False)

    off = (found.logits - alone.logits).square().mean(1).sqrt() / alone.logits.std(1)
    assert float(off.median()) < MOST_OFF
    assert float((off > 2 * MOST_OFF).float().mean()) < 0.25


def test_ranks_share_a_checkpoint_that_is_expanded(folder: Path) -> None:
    config = load_config(folder)

    def make(ranks: Ranks) -> ReferenceV4:
        network = ReferenceV4(config, CPU, record_format="fp8", ranks=ranks)
        load_weights(network, folder, progress=False)
        return network

    assert_shared(make, "fp8", 2, Bounds(atol=torch.inf, rms=0.05))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_attention_heads": 3, "o_groups": 1}, "3 heads"),
        ({"o_groups": 1}, "1 groups of heads"),
        ({"vocab_size": 97}, "97 tokens of the vocabulary"),
        ({"moe_intermediate_size": 1}, "1 channels of an expert"),
    ],
)
def test_a_network_that_ranks_cannot_share_is_refused(change: dict[str, int], words: str) -> None:
    config = dataclasses.replace(sized(CONFIG), **change)  # type: ignore[arg-type]

    with pytest.raises(UnevenShares, match=f"^{words} cannot be shared by 2 ranks$"):
        in_ranks(2, lambda ranks: ReferenceV4(config, CPU, ranks=ranks))


def test_ranks_hold_halves_of_what_is_shared() -> None:
    """What all ranks hold whole are latents, compressors, gates and norms."""
    config = sized(PACKED)

    def held(ranks: Ranks) -> dict[str, int]:
        network = ReferenceV4(config, CPU, ranks=ranks)
        wired = network._wired
        layer = wired.layers[0]
        return {
            "embedding": wired._embedding.weight.numel(),
            "queries": layer._attention._up.weight.numel(),  # type: ignore[attr-defined]
            "sinks": layer._attention.sink.numel(),
        }

    alone = held(OneRank())
    for found in in_ranks(2, held):
        assert found == {name: count // 2 for name, count in alone.items()}
