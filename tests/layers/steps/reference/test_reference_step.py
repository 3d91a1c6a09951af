"""What a reference step writes: blocks against the formula, the state and window left behind."""

import pytest
import torch
from torch import Tensor

from jit_kernels.indexer_keys import decode_keys
from jit_kernels.kv_records import decode_records
from jit_kernels.paged_rows import gather_rows
from layers.kinds import PlainKinds
from layers.models.deepseek_v4.config import ModelConfig
from layers.models.deepseek_v4.network import Fold, Pooling
from layers.models.deepseek_v4.pools import KvPools
from tests.testing import attention_formula
from tests.testing.compare import Bounds, assert_close
from tests.testing.direct import CPU
from tests.testing.tiny_model import cold_batch, one_layer, randomise

BOUNDS = Bounds(atol=1e-5, rtol=1e-4)
KINDS = PlainKinds(CPU, torch.float32)


def advanced(ratio: int, length: int) -> tuple[ModelConfig, KvPools, Tensor, dict[str, Tensor]]:
    """Write a cold prompt's blocks; return its inputs, and the compressor's weights by name."""
    config, pools, step = one_layer(ratio, cold_batch(length))
    compressor = (Pooling if ratio == 4 else Fold)(config, KINDS)
    weights = randomise(compressor.named_weights(""))
    x = torch.randn(length, config.hidden_size)
    compressor.write(x, step, 0)
    return config, pools, x, weights


def records_of(pools: KvPools, ratio: int, count: int) -> Tensor:
    """Return the first blocks that pages from 1 on hold."""
    pages, layout = pools.blocks(0)
    slots = torch.arange(256 // ratio, 256 // ratio + count)
    rows = gather_rows(pages, slots, layout)
    return decode_records(rows, record_format="fp32", channels=48, rope_channels=16)


def keys_of(pools: KvPools, count: int) -> Tensor:
    """Return the indexer's keys of the first blocks."""
    rows = gather_rows(pools.indexer[0], torch.arange(64, 64 + count), pools.indexer_layout)
    return decode_keys(rows, record_format="fp32")


@pytest.mark.parametrize("length", [3, 4, 5, 31, 300])
def test_pooled_blocks_are_the_formula(length: int) -> None:
    config, pools, x, weights = advanced(4, length)

    doubles = {name: weight.double() for name, weight in weights.items()}
    for got, prefix in (
        (records_of(pools, 4, length // 4), "compressor."),
        (keys_of(pools, length // 4), "indexer.compressor."),
    ):
        want = attention_formula.blocks(x.double(), doubles, prefix, config, 4)
        assert_close(got, want.float(), BOUNDS, what=prefix)


@pytest.mark.parametrize("length", [127, 128, 300])
def test_folded_blocks_are_the_formula(length: int) -> None:
    config, pools, x, weights = advanced(128, length)

    doubles = {name: weight.double() for name, weight in weights.items()}
    want = attention_formula.blocks(x.double(), doubles, "compressor.", config, 128)
    assert_close(records_of(pools, 128, length // 128), want.float(), BOUNDS)


@pytest.mark.parametrize(("ratio", "length"), [(4, 3), (4, 31), (128, 127), (128, 300)])
def test_pages_of_unfinished_blocks_are_not_written(ratio: int, length: int) -> None:
    _, pools, _, _ = advanced(ratio, length)

    pages, layout = pools.blocks(0)
    first, count = 256 // ratio, length // ratio
    slots = torch.tensor([*range(first), *range(first + count, 3 * first)])
    assert bool((gather_rows(pages, slots, layout) == 0xFF).all())


def test_the_ring_keeps_kv_and_gate_of_the_last_eight_tokens() -> None:
    config, pools, x, weights = advanced(4, 21)

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
    _, pools, x, weights = advanced(128, 131)

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


@pytest.mark.parametrize("ratio", [0, 4])
def test_keys_of_the_window_are_normed_turned_and_stored(ratio: int) -> None:
    config, pools, step = one_layer(ratio, cold_batch(150))
    kv, weight = torch.randn(150, config.head_dim), torch.rand(config.head_dim)

    step.store_window(0, kv, weight)

    # The last 128 positions lie around a ring of two pages of 64, 1 and 2.
    saved = torch.arange(150 - 128, 150)
    rows = gather_rows(pools.swa[0], 64 + saved % 128, pools.swa_layout)
    got = decode_records(rows, record_format="fp32", channels=48, rope_channels=16)
    for t, record in zip(saved.tolist(), got, strict=True):
        normed = weight.double() * attention_formula.rms(kv[t].double())
        want = attention_formula.rotate(normed, t, config, compressed=ratio > 0)
        assert_close(record, want.float(), BOUNDS, what=f"position {t}")


def test_a_step_says_what_it_was_asked() -> None:
    batch = cold_batch(9)
    _, _, step = one_layer(0, batch)

    assert step.input_ids is batch.input_ids
    assert step.logit_tokens is batch.logit_tokens
    assert step.finite_rows(torch.ones(9, dtype=torch.bool)).tolist() == [True]
    assert step.finite_rows(torch.arange(9) != 4).tolist() == [False]
