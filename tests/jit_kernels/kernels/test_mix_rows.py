"""Rows of `fn` in two bytes a number."""

import pytest
import torch

from jit_kernels.hyper_connection.mix_rows import pack, packed_rows, ranks_of
from tests.jit_kernels.kernels.mixes import as_packed

WIDTHS = pytest.mark.parametrize("width", [256, 1024, 4096])


def test_clusters_of_a_power_of_two_of_blocks_share_the_channels() -> None:
    assert [ranks_of(256 * ranks) for ranks in (1, 2, 4, 8, 16)] == [1, 2, 4, 8, 16]
    assert not any(map(ranks_of, (8, 264, 768, 3840, 5120, 7168, 8192)))


@WIDTHS
@pytest.mark.parametrize("rows", [24, 4])
def test_a_number_comes_close_to_what_the_largest_of_32_leaves_room_for(
    rows: int, width: int
) -> None:
    fn = torch.randn(rows, 4 * width) * torch.logspace(-6, 3, rows).unsqueeze(1)
    fn[0, 40:50] = 0.0

    error = as_packed(fn) - fn.double()

    # A multiplier has at least 32 channels side by side; units are up to twice what they need be.
    largest = fn.unflatten(1, (-1, 32)).abs().amax(2, keepdim=True)
    shares = error.unflatten(1, (-1, 32)) / largest
    everywhere = fn.abs().amax(1, keepdim=True)
    assert float((error / everywhere).abs().max()) < 2.0**-13
    assert float((error / everywhere).square().mean().sqrt()) < 2e-5
    assert float(shares.square().mean().sqrt()) < 4e-5


@WIDTHS
def test_logits_of_order_one_come_closer_than_those_of_tf32(width: int) -> None:
    fn = torch.randn(24, 4 * width) * (4 * width) ** -0.5
    x = torch.randn(500, 4 * width, dtype=torch.float64)

    errors = x @ (as_packed(fn) - fn.double()).T

    assert float(errors.square().mean().sqrt()) < 7e-5
    # Of TF32, whose numbers have ten bits and one that is implied.
    bits = fn.view(torch.int32) + (1 << 12) & -(1 << 13)
    coarse = x @ (bits.view(torch.float32).double() - fn.double()).T
    assert float(errors.square().mean()) < 0.25 * float(coarse.square().mean())


@WIDTHS
def test_units_are_those_of_a_line_and_a_multiplier(width: int) -> None:
    fn = torch.rand(24, 4 * width) + 0.5
    fn[3, 5] = 1e6

    error = (as_packed(fn) - fn.double()).abs()

    # Of each stream 32 channels share a line's unit with what is large.
    assert int((error > 2.0**-13).sum()) <= 128
    assert float(error[torch.arange(24) != 3].max()) < 2.0**-13
    assert abs(float(error[3, 5])) < 1e6 * 2.0**-13


def test_lines_that_are_not_finite_become_nan_and_harm_no_other() -> None:
    fn = torch.randn(24, 1024)
    fn[7, 3], fn[9, 100] = torch.inf, torch.nan
    want = as_packed(torch.where(fn.isfinite(), fn, 0.0))

    taken = as_packed(fn)

    spoilt = taken.isnan()
    assert spoilt[7, 3]
    assert spoilt[9, 100]
    assert not spoilt[[i for i in range(24) if i not in (7, 9)]].any()
    assert int(spoilt.sum()) <= 2 * 128
    assert torch.equal(taken[~spoilt], want[~spoilt])


@pytest.mark.parametrize("scale", [0.0, 1e-40, 1e-36, 1e30])
def test_rows_of_any_size_are_packed(scale: float) -> None:
    fn = torch.randn(24, 1024).clamp(-4, 4) * scale

    error = as_packed(fn) - fn.double()

    # What is smaller than all that matters is zero, or nearly so.
    assert float(error.abs().max()) <= max(scale * 2.0**-11, 1e-33)


def test_rows_are_packed_when_they_were_written() -> None:
    fn, ranks = torch.randn(24, 1024), ranks_of(256)
    assert ranks is not None

    with torch.inference_mode():
        first, new = packed_rows(fn, ranks)
    again, packed_again = packed_rows(fn, ranks)
    assert (new, packed_again) == (True, False)
    assert again is first

    with torch.inference_mode():
        fn[3] *= 2
    after, packed_after = packed_rows(fn, ranks)
    # Where it was: graphs read it there.
    assert packed_after
    assert after is first
    assert torch.equal(after, pack(fn, ranks))


def test_other_rows_with_the_same_numbers_have_a_place_of_their_own() -> None:
    fn, ranks = torch.randn(24, 1024), ranks_of(256)
    assert ranks is not None

    first, _ = packed_rows(fn, ranks)
    second, packed_now = packed_rows(fn.clone(), ranks)

    assert packed_now
    assert second is not first
    assert torch.equal(second, first)


def test_rows_whose_writes_nobody_counts_are_packed_each_time() -> None:
    ranks = ranks_of(256)
    assert ranks is not None
    with torch.inference_mode():
        fn = torch.randn(24, 1024)
        packed_rows(fn, ranks)
        fn[0] = 1.0
        rows, packed_now = packed_rows(fn, ranks)

    assert packed_now
    assert torch.equal(rows, pack(fn, ranks))


@pytest.mark.gpu
def test_rows_that_a_graph_packs_are_not_taken_for_those_of_others() -> None:
    fn, ranks = torch.randn(24, 1024), ranks_of(256)
    assert ranks is not None
    pack(fn, ranks)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured, packed_then = packed_rows(fn, ranks)

    rows, packed_now = packed_rows(fn, ranks)

    assert packed_then
    assert packed_now
    assert torch.equal(rows, pack(fn, ranks))
    graph.replay()
    assert torch.equal(captured, rows)
