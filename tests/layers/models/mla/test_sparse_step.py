"""What tokens read of the positions that they choose, against plain torch over packed numbers."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from jit_kernels.indexer_logits import indexer_logits
from layers.blocks.rope import HalfRope, PairRope, frequencies
from layers.models.mla.sparse_pools import SparsePage, SparsePools
from layers.models.mla.sparse_step import Ropes, SparseStep, Wanted
from mem_cache.spec import PoolSizes
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.page_rig import PagedRow, chunk_batch

MODULE = "layers.models.mla.sparse_step"
CPU = torch.device("cpu")
TOKENS, HEADS, INDEX_HEADS, CHOSEN, SCALE = 400, 3, 16, 64, 0.1
LATENT, TURNED, WIDTH = 512, 64, 128
ANGLES = frequencies(TURNED, 10000.0, None)


@dataclass(frozen=True)
class Made:
    """What the weights of a layer make of a row's tokens; records are turned, the rest is not."""

    records: Tensor
    keys: Tensor
    q: Tensor
    index_q: Tensor
    weights: Tensor


def made() -> Made:
    """Return random numbers."""
    return Made(
        torch.randn(TOKENS, LATENT + TURNED),
        torch.randn(TOKENS, WIDTH),
        torch.randn(TOKENS, HEADS, LATENT + TURNED),
        torch.randn(TOKENS, INDEX_HEADS, WIDTH),
        torch.randn(TOKENS, INDEX_HEADS),
    )


def attended(given: Made, chunk: int, record_format: str) -> Tensor:
    """Return what the tokens read, computed in chunks over pages that begin as NaN."""
    page = SparsePage(256, LATENT + TURNED, TURNED, WIDTH, record_format)
    pools = SparsePools(1, page, PoolSizes(3, 0, 0), CPU)
    for tensor in pools.tensors().values():
        tensor.fill_(255)
    ropes = Ropes(
        PairRope(ANGLES, attention_factor=1.0, device=CPU),
        HalfRope(ANGLES, attention_factor=1.0, device=CPU),
    )
    row, read = PagedRow([0] * TOKENS, pages=[3, 1]), list[Tensor]()
    while row.done < TOKENS:
        stop = min(TOKENS, row.done + chunk)
        part = slice(row.done, stop)
        step = SparseStep(chunk_batch([(row, stop)]), pools, ropes, chosen=CHOSEN)
        step.write(0, given.records[part])
        step.store_keys(0, given.keys[part].clone())
        wanted = Wanted(given.index_q[part].clone(), given.weights[part])
        read.append(step.attend(0, given.q[part], wanted, scale=SCALE))
        row.done = stop
    return torch.cat(read)


def rounded(x: Tensor, block: int) -> Tensor:
    """Return numbers rounded to e4m3, with a power-of-two scale for each `block` of them."""
    parts = x.unflatten(-1, (-1, block))
    scale = torch.exp2((parts.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448).log2().ceil())
    return ((parts / scale).to(torch.float8_e4m3fn).float() * scale).flatten(-2)


def mixed(x: Tensor) -> Tensor:
    """Return indexer vectors as packed scores take them: turned in halves, mixed, rounded."""
    angle = torch.arange(TOKENS).unsqueeze(1) * ANGLES
    low, high, rest = x.split([TURNED // 2, TURNED // 2, WIDTH - TURNED], -1)
    shape = (TOKENS, *[1] * (x.dim() - 2), TURNED // 2)
    cos, sin = angle.cos().view(shape), angle.sin().view(shape)
    turned = torch.cat((low * cos - high * sin, high * cos + low * sin, rest), -1)
    matrix = torch.ones(1, 1)
    while len(matrix) < WIDTH:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix)
    return rounded(turned @ matrix * WIDTH**-0.5, WIDTH)


def emulated(given: Made) -> Tensor:
    """Return what tokens read of packed records, over all of them at once."""
    latents = rounded(given.records[:, :LATENT], 128)
    records = torch.cat((latents, given.records[:, LATENT:].bfloat16().float()), 1)
    products = torch.einsum("qhc,kc->qhk", mixed(given.index_q), mixed(given.keys)).relu()
    scores = (given.weights.unsqueeze(2) * products).sum(1)
    hidden = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    best = scores.masked_fill(hidden, -torch.inf).topk(CHOSEN).indices
    hidden |= torch.ones_like(hidden).scatter(1, best, value=False)
    logits = torch.einsum("qhc,kc->qhk", given.q, records) * SCALE
    p = logits.masked_fill(hidden.unsqueeze(1), -torch.inf).softmax(2)
    return torch.einsum("qhk,kc->qhc", p, latents)


def test_packed_rows_are_read_as_plain_torch_reads_them() -> None:
    given = made()

    got, want = attended(given, 150, "fp8"), emulated(given)

    # A number on the border between two codes may fall to the other one and change a choice.
    alike = (got - want).abs().amax((1, 2)) < 1e-4
    assert int((~alike).sum()) <= 4
    # Numbers that were not rounded are told apart.
    plain = attended(given, 150, "fp32")
    assert int(((plain - want).abs().amax((1, 2)) < 1e-2).sum()) <= 4
    # Up to CHOSEN tokens read all positions, in any format.
    assert_close(plain[:CHOSEN], want[:CHOSEN], Bounds(atol=0.5, cosine=0.99))


@pytest.mark.parametrize("record_format", ["fp8", "bf16"])
def test_scores_of_few_tokens_at_once_change_no_bit(
    record_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, sizes = made(), list[int]()
    want = attended(given, TOKENS, record_format)

    def counted(*args: Tensor, row: Tensor, visible: Tensor) -> Tensor:
        scores = indexer_logits(*args, row=row, visible=visible)
        sizes.append(scores.numel())
        return scores

    monkeypatch.setattr(f"{MODULE}.MOST_SCORES", 20_000)
    monkeypatch.setattr(f"{MODULE}.indexer_logits", counted)

    assert_same_bits(attended(given, TOKENS, record_format), want)
    assert_same_bits(attended(given, 33, record_format), want)
    assert 0 < max(sizes) <= 20_000
