"""Pooling and folding of blocks."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.compress_kv import fold_blocks, pool_members
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.rows import assert_rows_independent


def pool(kv: torch.Tensor, gate: torch.Tensor, absent: torch.Tensor | None = None) -> torch.Tensor:
    """Pool blocks of slots [M, S, C] out of rows that hold both series in all four columns."""
    blocks, slots, width = kv.shape
    rows = torch.full((blocks * slots, 4 * width + 3), torch.nan)
    members = torch.arange(blocks * slots).flip(0).view(blocks, slots)
    for m in range(blocks):
        for s in range(slots):
            series = width * (s >= slots // 2)
            rows[members[m, s], series : series + width] = kv[m, s]
            rows[members[m, s], 2 * width + series : 3 * width + series] = gate[m, s]
    if absent is not None:
        members = members.masked_fill(absent, -1)
    return pool_members(rows, members, kv=0, gate=2 * width, width=width)


@pytest.mark.parametrize(("blocks", "slots", "width"), [(1, 2, 1), (3, 8, 33), (5, 7, 300)])
def test_pooling_is_a_softmax_per_channel(blocks: int, slots: int, width: int) -> None:
    kv, gate = torch.randn(blocks, slots, width), torch.randn(blocks, slots, width) * 5

    got = pool(kv, gate)

    want = (gate.double().softmax(1) * kv.double()).sum(1)
    assert_close(got, want.float(), Bounds(atol=1e-5))


def test_an_absent_slot_weighs_nothing() -> None:
    kv, gate = torch.randn(4, 8, 9), torch.randn(4, 8, 9)
    absent = torch.arange(8).expand(4, 8) < 4

    got = pool(kv, gate, absent)

    want = (gate[:, 4:].double().softmax(1) * kv[:, 4:].double()).sum(1)
    assert_close(got, want.float(), Bounds(atol=1e-6))


@pytest.mark.parametrize("width", [3, 40, 64])
def test_a_block_has_the_same_bits_in_any_company(width: int) -> None:
    assert_rows_independent(pool, [torch.randn(40, 8, width), torch.randn(40, 8, width)])


def test_a_member_that_is_no_row_is_an_error() -> None:
    members = torch.tensor([[0, 1], [2, 3]])

    with pytest.raises(IndexError):
        pool_members(torch.zeros(3, 12), members, kv=0, gate=6, width=3)


def test_series_beyond_the_last_column_are_refused() -> None:
    with pytest.raises(ShapeError, match="too few for two series"):
        pool_members(
            torch.zeros(3, 10), torch.zeros((1, 8), dtype=torch.int64), kv=0, gate=5, width=3
        )


def empty(segments: int, width: int) -> torch.Tensor:
    """Return states of nothing."""
    state = torch.zeros(segments, 3, width)
    state[:, 0] = -torch.inf
    return state


def test_folding_ends_at_the_softmax_of_the_block() -> None:
    kv, gate = torch.randn(50, 9), torch.randn(50, 9) * 20

    states = fold_blocks(kv, gate, empty(1, 9), active=[1] * 50)

    for length in (1, 2, 37, 50):
        want = (gate[:length].double().softmax(0) * kv[:length].double()).sum(0)
        have = states[length - 1, 2] / states[length - 1, 1]
        assert_close(have, want.float(), Bounds(atol=1e-5))


def test_folding_goes_on_where_it_stopped_to_the_bit() -> None:
    kv, gate = torch.randn(128, 21), torch.randn(128, 21)
    whole = fold_blocks(kv, gate, empty(1, 21), active=[1] * 128)

    for cut in (1, 64, 100, 127):
        head = fold_blocks(kv[:cut], gate[:cut], empty(1, 21), active=[1] * cut)
        tail = fold_blocks(kv[cut:], gate[cut:], head[-1:], active=[1] * (128 - cut))
        assert_same_bits(torch.cat((head, tail)), whole)


def test_segments_advance_together_without_meeting() -> None:
    lengths, width = [5, 3, 3, 1], 13
    kv = [torch.randn(length, width) for length in lengths]
    gate = [torch.randn(length, width) for length in lengths]
    active = [sum(length > step for length in lengths) for step in range(5)]
    order = [(segment, step) for step in range(5) for segment in range(active[step])]

    got = fold_blocks(
        torch.stack([kv[segment][step] for segment, step in order]),
        torch.stack([gate[segment][step] for segment, step in order]),
        empty(4, width),
        active=active,
    )

    for segment, length in enumerate(lengths):
        alone = fold_blocks(kv[segment], gate[segment], empty(1, width), active=[1] * length)
        mine = [i for i, (other, _) in enumerate(order) if other == segment]
        assert_same_bits(got[mine], alone)


def test_steps_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ShapeError, match="kv has shape"):
        fold_blocks(torch.zeros(3, 2), torch.zeros(3, 2), empty(1, 2), active=[1, 1])
