"""V3.2 in packed rows: against an emulation by transformers, and against plain numbers."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.conftest import SEED
from tests.layers.models.mla.test_model import loaded
from tests.testing.compare import Bounds, assert_close
from tests.testing.gqa_checkpoints import VOCAB, write
from tests.testing.mla_checkpoints import reference
from tests.testing.packed_v32 import emulated_logits, stored_layers
from tests.testing.page_rig import PagedRow, PageRig

# Sums of another order; what a choice by scores that tie would move is far more.
BOUND = Bounds(atol=2e-4)
SEEDS = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 9)]


def seeded(seed: int) -> random.Random:
    """Seed torch, which draws weights; return what draws words."""
    torch.manual_seed(100 * SEED + seed)
    return random.Random(100 * SEED + seed)


def draw_words(draw: random.Random, count: int) -> list[int]:
    """Return random token ids."""
    return [draw.randrange(2, VOCAB) for _ in range(count)]


def logits_at(rig: PageRig, row: PagedRow, stops: list[int]) -> Tensor:
    """Compute a row in chunks that end at these positions; return the logits of each end."""
    return torch.stack([rig.step([(row, stop)])[0] for stop in stops])


@pytest.mark.parametrize("seed", [0, *SEEDS])
def test_logits_are_those_of_an_emulation_over_the_same_rows(seed: int, tmp_path: Path) -> None:
    draw = seeded(seed)
    model = reference("v32")
    # Six times as many positions as a token attends; then chunks of one.
    stops = sorted({*draw.sample(range(1, 280), 12), *range(280, 290)})
    prompt = draw_words(draw, stops[-1])
    rig, row = PageRig(loaded(write(model, tmp_path), kv_cache_dtype="fp8")), PagedRow(prompt)

    got = logits_at(rig, row, stops)

    stored = stored_layers(rig.pools, row.pages, len(prompt))
    want, decided = emulated_logits(model, prompt, stored)
    ends = torch.tensor(stops) - 1
    assert float(decided.float().mean()) > 0.8
    assert_close(got[decided[ends]], want[ends[decided[ends]]], BOUND)
    # Plain rows are told apart.
    with torch.inference_mode():
        plain = model(torch.tensor([prompt]), use_cache=False).logits[0, ends]
    assert float((plain - got).abs().amax(1).median()) > 0.1


@pytest.mark.parametrize("attended", [48, 2048])
@pytest.mark.parametrize("seed", [0, *SEEDS])
def test_one_layer_is_as_far_from_plain_rows_as_its_numbers_are(
    seed: int, attended: int, tmp_path: Path
) -> None:
    """An e4m3 number is wrong by at most 2^-4 of itself, so scores are by a share of their parts.

    Where all positions are attended, a token's logits then move by a few times 2^-4 of their
    length. Where the indexer chooses, positions with close scores change places besides, which
    moves single tokens further: the median is bounded.
    """
    draw = seeded(seed)
    model = reference("v32", num_hidden_layers=1, index_topk=attended)
    prompt, stops = draw_words(draw, 250), list(range(10, 251, 20))
    folder = write(model, tmp_path)

    plain, packed = (
        logits_at(PageRig(loaded(folder, kv_cache_dtype=name)), PagedRow(prompt), stops)
        for name in ("fp32", "fp8")
    )

    off = (packed - plain).norm(dim=1) / plain.norm(dim=1)
    every = torch.tensor(stops) <= attended
    assert float(off[every].max()) < 4 * 2.0**-4
    assert float(off.median()) < 4 * 2.0**-4
    assert float(off.min()) > 2.0**-8
