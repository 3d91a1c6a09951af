"""Blocks that the indexer chooses, against the formula."""

import pytest
import torch

from jit_kernels.indexer_keys import decode_keys, hadamard
from jit_kernels.paged_rows import gather_rows
from layers.steps.reference.indexer import Indexer
from mem_cache.spec import RecordFormat
from tests.testing import attention_formula
from tests.testing.compare import Bounds, assert_close
from tests.testing.tiny_model import cold_batch, one_layer

LENGTH = 180


def scores(q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Return [T, blocks] scores of rotated queries [T, H, C], but for a positive factor."""
    products = torch.einsum("thc,bc->tbh", q.double(), keys.double()).clamp(min=0)
    return (products * weights.double().unsqueeze(1)).sum(-1)


@pytest.mark.parametrize("record_format", ["fp32", "bf16", "fp8"])
def test_the_best_blocks_are_chosen(record_format: RecordFormat) -> None:
    config, pools, plan = one_layer(4, cold_batch(LENGTH), record_format)
    heads, width, top_k = config.index_n_heads, config.index_head_dim, config.index_topk
    assert plan.pooling is not None
    assert plan.compressed_rotation is not None
    indexer = Indexer(config)
    keys, weights = torch.randn(LENGTH // 4, width), torch.randn(LENGTH, heads)
    q = torch.randn(LENGTH, heads * width)
    rotated = torch.stack(
        [
            attention_formula.rotate(row.view(heads, width).double(), t, config, compressed=True)
            for t, row in enumerate(q)
        ]
    )

    indexer.store(keys, plan.pooling.finished, pools, 0)
    got = indexer.select(q.clone(), weights, plan.compressed_rotation, plan.pooling, pools, layer=0)

    want = scores(rotated, weights, keys)
    # A block may be chosen or left out against the formula only near the last place.
    slack = {"fp32": 1e-4, "bf16": 0.02, "fp8": 0.08}[record_format] * float(want.std())
    for t in range(LENGTH):
        visible = (t + 1) // 4
        chosen = [b for b in got[t].tolist() if b >= 0]
        assert chosen == sorted(set(chosen))
        assert len(chosen) == min(visible, top_k)
        left = [b for b in range(visible) if b not in chosen]
        if left and chosen:
            assert float(want[t, left].max() - want[t, chosen].min()) <= 3 * slack, t


@pytest.mark.parametrize("record_format", ["fp32", "fp8"])
def test_keys_lie_in_the_pages_of_their_blocks(record_format: RecordFormat) -> None:
    config, pools, plan = one_layer(4, cold_batch(300), record_format)
    assert plan.pooling is not None
    keys = torch.randn(75, config.index_head_dim)

    Indexer(config).store(keys, plan.pooling.finished, pools, 0)

    rows = gather_rows(pools.indexer[0], torch.arange(64, 64 + 75), pools.indexer_layout)
    got = decode_keys(rows, record_format=record_format)
    if record_format == "fp8":
        assert_close(hadamard(got), keys, Bounds(atol=0.2, rms=0.05))
    else:
        assert_close(got, keys, Bounds())
