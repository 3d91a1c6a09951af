"""Products that round their one row themselves, to the bits of rounding and multiplying apart."""

from collections.abc import Callable

import pytest
import torch

from jit_kernels.fp8_linear import cuda_backend, fp8_linear, one_row_backend
from jit_kernels.quant_fp8 import cuda_backend as norms
from jit_kernels.quant_fp8 import norm_quant, quantise_rows, triton_backend
from tests.jit_kernels.kernels.fp8_weights import fp8_weight
from tests.testing.compare import assert_same_bits

pytestmark = pytest.mark.gpu

EPS = 1e-6
# Lines and depths; 8, 4, 2 and 1 warps share the channels of a line in the last ones.
SHAPES = [
    (16, 128), (48, 256), (272, 384), (144, 640), (80, 1152), (528, 2048), (16, 2176), (1008, 4096),
    (272, 4224), (64, 7168), (16, 8064), (1536, 4096), (4096, 8192), (8192, 1024), (16384, 2048),
    (16384, 8192), (32768, 1024), (32784, 4096),
]  # fmt: skip
NORMED = [
    (16, 512), (272, 1024), (1040, 1536), (48, 2048), (80, 2560), (144, 3072), (16, 3584),
    (528, 4096), (8192, 1024), (16384, 1536), (32768, 1024),
]  # fmt: skip


def row_of(depth: int) -> torch.Tensor:
    """Return a row [1, depth] of every size, with zeros of both signs and a group of zeros.

    It lies within a wider row, and what is beside it is NaN.
    """
    wide = torch.full((1, depth + 128), torch.nan, dtype=torch.bfloat16)
    row = wide[:, 64 : 64 + depth]
    row.copy_(torch.randn(1, depth) * torch.logspace(-9, 5, depth))
    row[:, ::7], row[:, 3::14] = 0.0, -0.0
    row[:, -128:] = 0.0
    return row


def product(
    x: torch.Tensor,
    weight: tuple[torch.Tensor, torch.Tensor],
    norm: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return what one launch makes of a row."""
    assert one_row_backend.rounds_rows(x, norm)
    return one_row_backend.fp8_linear_of(x, *weight, norm, EPS, False)


def apart(
    x: torch.Tensor,
    weight: tuple[torch.Tensor, torch.Tensor],
    norm: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return what two launches make of it."""
    rows = triton_backend.quantise_rows(x) if norm is None else norms.norm_quant(x, norm, EPS)
    return cuda_backend.fp8_linear(*rows, *weight)


@pytest.mark.parametrize(("lines", "depth"), SHAPES)
def test_a_row_that_is_rounded_on_the_way_has_the_bits_of_one_that_was(
    lines: int, depth: int
) -> None:
    x, weight = row_of(depth), fp8_weight(lines, depth)

    assert_same_bits(product(x, weight), apart(x, weight))


@pytest.mark.parametrize(("lines", "depth"), NORMED)
def test_a_row_that_is_normed_on_the_way_has_the_bits_of_one_that_was(
    lines: int, depth: int
) -> None:
    x, weight, norm = row_of(depth), fp8_weight(lines, depth), torch.randn(depth)

    assert_same_bits(product(x, weight, norm), apart(x, weight, norm))


def test_every_depth_is_rounded_alike() -> None:
    for depth in range(128, 8192 + 1, 128):
        x, weight = row_of(depth), fp8_weight(32, depth)
        want = apart(x, weight)
        assert_same_bits(product(x, weight), want, what=f"{depth} channels")
        if depth % 512 == 0 and depth <= 4096:
            norm = torch.randn(depth)
            want = apart(x, weight, norm)
            got = product(x, weight, norm)
            assert_same_bits(got, want, what=f"{depth} normed channels")


@pytest.mark.parametrize("size", [0.0, 1e-40, 1e-30, 1e-4, 447.0, 449.0, 1e30, 3e38])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("depth", [1024, 4096, 8192])
def test_rows_of_any_size_are_rounded_alike(depth: int, normed: bool, size: float) -> None:
    if normed and depth > 4096:
        pytest.skip("no kernel norms so many")
    norm = torch.randn(depth) if normed else None
    x = (torch.rand(1, depth) * 2 - 1).mul_(size).bfloat16()
    x[0, 77] = size
    weight = fp8_weight(256, depth)

    want = apart(x, weight, norm)
    assert_same_bits(product(x, weight, norm), want)


@pytest.mark.parametrize("odd", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("depth", [1024, 4096, 8192])
def test_what_is_not_finite_is_rounded_alike(depth: int, normed: bool, odd: float) -> None:
    if normed and depth > 4096:
        pytest.skip("no kernel norms so many")
    norm = torch.randn(depth) if normed else None
    x = torch.randn(1, depth).bfloat16()
    x[0, depth - 130] = odd
    weight = fp8_weight(256, depth)

    want = apart(x, weight, norm)
    assert_same_bits(product(x, weight, norm), want)
    assert bool(want.isnan().all()) == (normed or odd != odd)


def test_the_part_of_a_row_that_a_product_left_is_taken_as_it_lies() -> None:
    both = torch.randn(1, 1536).bfloat16()
    low, norm, weight = both.split([1024, 512], 1)[0], torch.randn(1024), fp8_weight(512, 1024)

    got = product(low, weight, norm)

    assert_same_bits(got, apart(low.contiguous(), weight, norm))


def test_a_row_has_the_same_bits_beside_others() -> None:
    x, norm, weight = torch.randn(8, 1024).bfloat16(), torch.randn(1024), fp8_weight(8192, 1024)

    for gain in (None, norm):
        whole = apart(x, weight, gain)
        for row in (0, 3, 7):
            alone = product(x[row : row + 1], weight, gain)
            assert_same_bits(alone, whole[row : row + 1], what=f"row {row}")


@pytest.mark.parametrize("normed", [False, True])
def test_a_product_reads_its_row_after_the_launch_that_writes_it(normed: bool) -> None:
    norm = torch.randn(4096) if normed else None
    weight = fp8_weight(4096, 4096)
    drawn = torch.randn(64, 1, 4096).bfloat16()
    wanted = [apart(x, weight, norm) for x in drawn]
    x = torch.empty(1, 4096, dtype=torch.bfloat16)

    got = [product(x.copy_(fresh), weight, norm) for fresh in drawn]

    assert_same_bits(torch.cat(got), torch.cat(wanted), what="rows one after the other")


def test_products_of_products_wait_for_each_other() -> None:
    x, norm = torch.randn(1, 4096).bfloat16(), torch.randn(1024)
    down, up, back = fp8_weight(1536, 4096), fp8_weight(32768, 1024), fp8_weight(4096, 8192)

    def chain(multiply: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        row, seen = x, list[torch.Tensor]()
        for _ in range(20):
            low = multiply(row, down)
            q = multiply(low[:, :1024], up, norm)
            row = multiply(q[:, 8192:16384], back)
            seen += [low, q, row]
        return seen

    for got, want in zip(chain(product), chain(apart), strict=True):
        assert_same_bits(got, want)


def test_other_rows_and_weights_are_rounded_apart() -> None:
    weight, weight_scales = fp8_weight(40, 1024)
    row, norm = torch.randn(1, 1024).bfloat16(), torch.randn(1024)
    odd = torch.randn(1, 1032).bfloat16()[:, 4:1028]
    for x in (row, row.float(), row.expand(2, -1), odd, torch.empty(0, 1024).bfloat16()):
        for gain in (None, norm):
            rows = quantise_rows(x) if gain is None else norm_quant(x, gain, eps=EPS)
            for invariant in (False, True):
                got = one_row_backend.fp8_linear_of(x, weight, weight_scales, gain, EPS, invariant)
                want = fp8_linear(*rows, weight, weight_scales, invariant=invariant)
                assert_same_bits(got, want)
