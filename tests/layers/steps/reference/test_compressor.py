"""Finished blocks against the formula, and the state that is left behind."""

import pytest
import torch

from jit_kernels.kv_records import decode_records
from jit_kernels.paged_rows import gather_rows
from layers.steps.reference.compressor import FoldCompressor, PoolingCompressor, store_blocks
from tests.testing import attention_formula
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.direct import CPU
from tests.testing.tiny_model import cold_batch, one_layer, randomise

BOUNDS = Bounds(atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("length", [3, 4, 5, 31, 300])
def test_pooled_blocks_are_the_formula(length: int) -> None:
    config, pools, plan = one_layer(4, cold_batch(length))
    compressor = PoolingCompressor(config, CPU)
    weights = randomise(compressor.named_weights(""))
    x = torch.randn(length, config.hidden_size)
    assert plan.pooling is not None

    ended = compressor.advance(x, plan.pooling, pools, 0)

    if length < 4:
        assert ended is None
        return
    assert ended is not None
    doubles = {name: weight.double() for name, weight in weights.items()}
    for got, prefix in zip(ended, ("compressor.", "indexer.compressor."), strict=True):
        want = attention_formula.blocks(x.double(), doubles, prefix, config, 4)
        assert_close(got, want.float(), BOUNDS, what=prefix)


@pytest.mark.parametrize("length", [127, 128, 300])
def test_folded_blocks_are_the_formula(length: int) -> None:
    config, pools, plan = one_layer(128, cold_batch(length))
    compressor = FoldCompressor(config, CPU)
    weights = randomise(compressor.named_weights(""))
    x = torch.randn(length, config.hidden_size)
    assert plan.fold is not None

    records = compressor.advance(x, plan.fold, pools, 0)

    if length < 128:
        assert records is None
        return
    assert records is not None
    doubles = {name: weight.double() for name, weight in weights.items()}
    want = attention_formula.blocks(x.double(), doubles, "compressor.", config, 128)
    assert_close(records, want.float(), BOUNDS)


def test_the_ring_keeps_kv_and_gate_of_the_last_eight_tokens() -> None:
    config, pools, plan = one_layer(4, cold_batch(21))
    compressor = PoolingCompressor(config, CPU)
    weights = randomise(compressor.named_weights(""))
    x = torch.randn(21, config.hidden_size)
    assert plan.pooling is not None

    compressor.advance(x, plan.pooling, pools, 0)

    width, index_width = config.head_dim, config.index_head_dim
    for t in range(13, 21):
        row = pools.c4_state[0, 1, t % 8]
        kv, gate = row[: 2 * width], row[2 * width : 4 * width]
        assert_close(kv, weights["compressor.wkv.weight"] @ x[t], BOUNDS)
        want = weights["compressor.wgate.weight"] @ x[t] + weights["compressor.ape"][t % 4]
        assert_close(gate, want, BOUNDS)
        want = weights["indexer.compressor.wkv.weight"] @ x[t]
        assert_close(row[4 * width : 4 * width + 2 * index_width], want, BOUNDS)


def test_the_banks_keep_the_state_of_the_last_two_tokens() -> None:
    config, pools, plan = one_layer(128, cold_batch(131))
    compressor = FoldCompressor(config, CPU)
    weights = randomise(compressor.named_weights(""))
    x = torch.randn(131, config.hidden_size)
    assert plan.fold is not None

    compressor.advance(x, plan.fold, pools, 0)

    kv = x @ weights["compressor.wkv.weight"].T
    gate = (
        x @ weights["compressor.wgate.weight"].T
        + weights["compressor.ape"][torch.arange(131) % 128]
    )
    for t in (129, 130):
        greatest, total, weighted = pools.c128_state[0, 1, t % 2]
        assert_close(greatest, gate[128 : t + 1].amax(0), BOUNDS)
        want = (gate[128 : t + 1].softmax(0) * kv[128 : t + 1]).sum(0)
        assert_close(weighted / total, want, BOUNDS)


@pytest.mark.parametrize("ratio", [4, 128])
def test_records_are_stored_in_their_pages(ratio: int) -> None:
    _, pools, plan = one_layer(ratio, cold_batch(300))
    part = plan.pooling or plan.fold
    assert part is not None
    records = torch.randn(part.finished.slots.shape[0], pools.spec.head_dim)

    store_blocks(records, part.finished, pools, 0)

    pages, layout = (pools.c4, pools.c4_layout) if ratio == 4 else (pools.c128, pools.c128_layout)
    slots = torch.arange(256 // ratio, 256 // ratio + 300 // ratio)
    rows = gather_rows(pages[0], slots, layout)
    got = decode_records(rows, record_format="fp32", channels=48, rope_channels=16)
    assert_same_bits(got, records)
