"""The floor of a decode step, counted by hand."""

import pytest

from layers.models.deepseek_v4.config import load_config, pool_spec
from tests.bench.network.__main__ import CUT
from tests.bench.network.floor import (
    StepBytes,
    dense_bytes,
    expected_experts,
    kv_bytes,
    one_expert_bytes,
    routed,
)
from tests.bench.network.small_network import SMALL, network

FLASH = load_config(CUT)
pytestmark = pytest.mark.usefixtures("dense_weights_once")


def test_the_floor_is_all_bytes_over_the_bandwidth() -> None:
    assert StepBytes(dense=2, experts=3, kv=5).floor_ms(1e3) == pytest.approx(10.0)


def test_uniform_routing_touches_as_many_experts_as_the_formula_says() -> None:
    touched = [round(expected_experts(FLASH, rows)) for rows in (1, 16, 64, 128)]

    assert touched == [6, 81, 200, 244]


def test_an_expert_is_three_matrices_of_codes_and_scales() -> None:
    numbers = 3 * 4096 * 2048

    assert one_expert_bytes(FLASH, "fp8") == numbers + numbers // (128 * 128) * 4
    assert one_expert_bytes(FLASH, "fp4") == numbers // 2 + numbers // 32
    assert one_expert_bytes(FLASH, "both") == one_expert_bytes(FLASH, "fp4")


@pytest.mark.parametrize(
    ("tokens", "window", "chosen"), [(8192, 128, 512), (100, 100, 25), (0, 0, 0)]
)
def test_a_row_reads_window_blocks_and_indexer_keys(tokens: int, window: int, chosen: int) -> None:
    want = 8 * window * 584 + 3 * (chosen * 584 + tokens // 4 * 132) + 3 * (tokens // 128) * 584

    assert kv_bytes(FLASH, pool_spec(FLASH, "fp8"), tokens) == want


def test_dense_weights_are_all_but_tables_and_routed_experts() -> None:
    d, wide = SMALL.hidden_size, SMALL.num_attention_heads * 512
    inner, index = SMALL.moe_intermediate_size, SMALL.index_n_heads
    fp8 = 4 * (d * (128 + 512) + 128 * wide + wide * 128 + 256 * d + 3 * d * inner)
    fp8 += 2 * 128 * index * 128
    bf16 = 4 * SMALL.n_routed_experts * d + SMALL.vocab_size * d
    bf16 += 2 * d * (4 * 512 + 4 * 128 + index) + d * 2 * 512
    norms = 4 * (2 * d + 128 + 512) + 2 * (512 + 128) + 512 + d
    mixing = 8 * (24 * 4 * d + 24 + 3) + 4 * 4 * d + 4 + 1
    # Sinks, biases of the three layers without a table, what is added to gates by position.
    added = 4 * 4 + 3 * SMALL.n_routed_experts + 2 * 4 * (2 * 512 + 2 * 128) + 128 * 512
    scales = fp8 // (128 * 128)

    assert dense_bytes(network()) == fp8 + 2 * bf16 + 4 * (norms + mixing + added + scales)


def test_routing_is_counted_for_both_kinds_of_layers() -> None:
    from tests.bench.network.decode import Context

    context = Context(network(), tokens=130, rows=2, replays=1, chunk=128)

    counts = context.decoder(2).experts()

    assert len(counts) == SMALL.num_hidden_layers
    assert all(2 <= count <= 4 for count in counts)
    with routed() as none:
        pass
    assert none == []
