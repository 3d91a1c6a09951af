"""Blocks that the indexer chooses, against the formula."""

import pytest
import torch

from jit_kernels.indexer_keys import decode_keys, hadamard
from jit_kernels.paged_rows import gather_rows
from layers.models.deepseek_v4.config import ModelConfig
from layers.models.deepseek_v4.model import angles
from layers.models.deepseek_v4.pool_spec import RecordFormat
from layers.models.deepseek_v4.pools import KvPools
from layers.steps.reference.attention_plan import AttentionPlan, plan_attention
from layers.steps.reference.compression_plan import PoolingPlan
from layers.steps.reference.indexer import choose_blocks, store_keys
from tests.testing import attention_formula
from tests.testing.compare import Bounds, assert_close
from tests.testing.direct import CPU
from tests.testing.tiny_model import cold_batch, one_layer

LENGTH = 180


def planned(
    length: int, record_format: RecordFormat
) -> tuple[ModelConfig, KvPools, AttentionPlan, PoolingPlan]:
    """Return a layer that compresses by 4, its pools, and the plan of a cold prompt."""
    batch = cold_batch(length)
    config, pools, _ = one_layer(4, batch, record_format)
    rope = angles(config, CPU)
    plan = plan_attention(batch, pools.spec, top_k=config.index_topk, rope=rope)
    assert plan.pooling is not None
    return config, pools, plan, plan.pooling


def scores(q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Return [T, blocks] scores of rotated queries [T, H, C], but for a positive factor."""
    products = torch.einsum("thc,bc->tbh", q.double(), keys.double()).clamp(min=0)
    return (products * weights.double().unsqueeze(1)).sum(-1)


@pytest.mark.parametrize("record_format", ["fp32", "bf16", "fp8"])
def test_the_best_blocks_are_chosen(record_format: RecordFormat) -> None:
    config, pools, plan, pooling = planned(LENGTH, record_format)
    heads, width, top_k = config.index_n_heads, config.index_head_dim, config.index_topk
    assert plan.compressed_rotation is not None
    keys, weights = torch.randn(LENGTH // 4, width), torch.randn(LENGTH, heads)
    q = torch.randn(LENGTH, heads, width)
    rotated = torch.stack(
        [
            attention_formula.rotate(row.double(), t, config, compressed=True)
            for t, row in enumerate(q)
        ]
    )

    given = q.clone()
    store_keys(keys, pooling.finished, pools, 0)
    got = choose_blocks(
        given, weights, plan.compressed_rotation, pooling.table, pools, layer=0, top_k=top_k
    )

    assert torch.equal(given, q), "the queries are the caller's"
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
    config, pools, _, pooling = planned(300, record_format)
    keys = torch.randn(75, config.index_head_dim)

    store_keys(keys, pooling.finished, pools, 0)

    rows = gather_rows(pools.indexer[0], torch.arange(64, 64 + 75), pools.indexer_layout)
    got = decode_keys(rows, record_format=record_format)
    if record_format == "fp8":
        assert_close(hadamard(got), keys, Bounds(atol=0.2, rms=0.05))
    else:
        assert_close(got, keys, Bounds())
