"""Tokens over packed pages, against the step in plain numbers over records of the same bytes."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from jit_kernels.latent_heads import LatentWeights
from layers.blocks.rope import HalfRope, PairRope, frequencies
from layers.models.mla.choice import TokenChoice
from layers.models.mla.packed_step import PackedStep
from layers.models.mla.sparse_pools import SparsePage, SparsePools
from layers.models.mla.sparse_step import Ropes, SparseStep, Wanted
from layers.steps.page_places import of_chunks
from mem_cache.spec import PoolSizes, TreeSpec
from tests.testing.compare import Bounds, assert_close
from tests.testing.page_rig import PagedRow, chunk_batch

CPU = torch.device("cpu")
TOKENS, HEADS, PLAIN, INDEX_HEADS, CHOSEN, SCALE = 400, 3, 16, 33, 64, 0.1
LATENT, TURNED, WIDTH, PAGE = 512, 64, 128, 256
TREE = TreeSpec(PAGE, window=0, has_state=False)
ANGLES = frequencies(TURNED, 10000.0, None)


@dataclass(frozen=True)
class Made:
    """What the weights of a layer make of a row's tokens, before anything turns.

    Numbers are those of bfloat16, so that queries are not rounded where they are.
    """

    q: Tensor
    records: Tensor
    keys: Tensor
    wanted: Wanted
    weights: LatentWeights


def made() -> Made:
    """Return random numbers."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape).bfloat16().float()

    return Made(
        draw(TOKENS, HEADS, PLAIN + TURNED),
        draw(TOKENS, LATENT + TURNED),
        draw(TOKENS, WIDTH),
        Wanted(draw(TOKENS, INDEX_HEADS, WIDTH), draw(TOKENS, INDEX_HEADS)),
        LatentWeights(draw(HEADS, PLAIN, LATENT).bfloat16(), torch.rand(LATENT) + 0.5, 1e-6),
    )


def ropes(*, interleaved: bool) -> Ropes:
    """Return how channels turn; an indexer's in the other convention."""
    pair, half = (kind(ANGLES, attention_factor=1.0, device=CPU) for kind in (PairRope, HalfRope))
    return Ropes(pair, half) if interleaved else Ropes(half, pair)


def read(given: Made, turns: Ropes, *, packed: bool) -> tuple[Tensor, SparsePools]:
    """Return what the tokens read in two chunks, and the pools."""
    page = SparsePage(PAGE, LATENT + TURNED, TURNED, WIDTH, "fp8")
    pools, row, found = SparsePools(1, page, PoolSizes(3, 0, 0), CPU), PagedRow([0] * TOKENS), []
    for tensor in pools.tensors().values():
        tensor.fill_(255)
    row.pages.extend([3, 1])
    for stop in (150, TOKENS):
        batch, part = chunk_batch([(row, stop)]), slice(row.done, stop)
        step: Any = SparseStep(batch, pools, turns, chosen=CHOSEN)
        if packed:
            places = of_chunks(batch, TREE, CPU)
            choice = TokenChoice(places, page_tokens=PAGE, chosen=CHOSEN)
            step = PackedStep(places, pools, turns, choice, deterministic=True)
        weights = given.weights
        if not packed:
            weights = LatentWeights(weights.keys.float(), weights.norm, weights.eps)
        q = step.heads(0, given.q[part].clone(), given.records[part].clone(), weights)
        step.store_keys(0, given.keys[part].clone())
        wanted = Wanted(*(field[part].clone() for field in given.wanted))
        found.append(step.attend(0, q, wanted, scale=SCALE).float())
        row.done = stop
    return torch.cat(found), pools


@pytest.mark.parametrize("interleaved", [True, False])
def test_pages_hold_the_same_bytes_and_tokens_read_the_same(interleaved: bool) -> None:
    given, turns = made(), ropes(interleaved=interleaved)

    got, pools = read(given, turns, packed=True)
    want, others = read(given, turns, packed=False)

    # A number on the border between two codes may fall to the other one.
    for name, tensor in pools.tensors().items():
        same = (tensor == others.tensors()[name]).float().mean()
        assert float(same) > 0.999, name
    # Products are rounded to bfloat16, choices are not.
    assert_close(got, want, Bounds(cosine=0.9999, rms=0.02, atol=torch.inf))
    off = (got - want).norm(dim=(1, 2)) / want.norm(dim=(1, 2))
    assert float(off.max()) < 0.05
