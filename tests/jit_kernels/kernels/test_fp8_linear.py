"""Products of fp8 numbers on the device, against the reference and in every tile."""

from types import ModuleType

import pytest
import torch

from jit_kernels.fp8_linear import cuda_backend, reference, triton_backend
from jit_kernels.fp8_linear.triton_backend import Tile
from jit_kernels.quant_fp8.reference import quantise_rows
from tests.jit_kernels.kernels.fp8_weights import fp8_weight
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import Bounds, assert_close, assert_same_bits

# Tensor cores keep fewer bits than float32 while they add up a block of 128 channels.
BOUNDS = Bounds(atol=1e-2, rtol=2e-3, cosine=0.99999)
ROUNDED = Bounds(atol=1e-2, rtol=2**-7, cosine=0.9999)
SHAPES = with_large(
    [(1, 33, 128), (3, 130, 384), (17, 48, 640)],
    [
        (1, 4096, 4096), (7, 1536, 4096), (16, 32768, 1024), (31, 4096, 8192), (64, 4096, 2048),
        (130, 1000, 1024), (1000, 4096, 4096), (8, 32768, 1024), (5, 528, 384), (2, 16, 128),
        (3, 272, 1664), (4, 48, 4224), (8, 1536, 4096), (1, 144, 640),
    ],
)  # fmt: skip
GROUPED = with_large(
    [(3, 2, 40, 256)],
    [(1, 8, 1024, 4096), (6, 8, 1024, 4096), (17, 8, 1024, 4096), (300, 8, 1024, 4096)],
)
BACKENDS = pytest.mark.parametrize("backend", with_large([triton_backend], [cuda_backend]))
STREAMS = [Tile(16, 8, 4, 4, 3), Tile(32, 16, 2, 4, 2)]
SQUARES = [Tile(64, 64, 1, 4, 3)]


def operands(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return quantised rows of normal numbers, channels of unlike sizes."""
    x = torch.randn(shape) * torch.logspace(-1, 1, shape[-1])
    codes, scales = quantise_rows(x.flatten(1))
    return codes.view(shape), scales.unflatten(1, (-1, shape[-1] // 128)).view(*shape[:-1], -1)


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns", "depth"), SHAPES)
def test_the_product_equals_the_reference(
    backend: ModuleType, rows: int, columns: int, depth: int, dtype: torch.dtype
) -> None:
    codes, scales = operands(rows, depth)
    weight, weight_scales = fp8_weight(columns, depth)

    got = backend.fp8_linear(codes, scales, weight, weight_scales, dtype)

    want = reference.fp8_linear(codes, scales, weight, weight_scales, torch.float32)
    assert got.dtype == dtype
    assert_close(got.float(), want, BOUNDS if dtype == torch.float32 else ROUNDED)


@pytest.mark.parametrize("tile", STREAMS + SQUARES)
def test_every_tile_gives_the_product(tile: Tile) -> None:
    codes, scales = operands(19, 384)
    weight, weight_scales = fp8_weight(70, 384)

    got = triton_backend.multiply(codes, scales, weight, weight_scales, torch.float32, tile=tile)

    want = reference.fp8_linear(codes, scales, weight, weight_scales, torch.float32)
    assert_close(got, want, BOUNDS)


@BACKENDS
@pytest.mark.parametrize(("rows", "groups", "columns", "depth"), GROUPED)
def test_groups_are_products_side_by_side(
    backend: ModuleType, rows: int, groups: int, columns: int, depth: int
) -> None:
    codes, scales = operands(rows, groups, depth)
    weight, weight_scales = fp8_weight(groups, columns, depth)

    got = backend.fp8_linear_grouped(codes, scales, weight, weight_scales, torch.float32)

    want = reference.fp8_linear_grouped(codes, scales, weight, weight_scales, torch.float32)
    assert_close(got, want, BOUNDS)


@BACKENDS
def test_scales_of_groups_may_lie_anyhow(backend: ModuleType) -> None:
    rows, groups, columns, depth = GROUPED[0]
    codes, scales = operands(rows, groups, depth)
    weight, weight_scales = fp8_weight(groups, columns, depth)
    apart = scales.permute(1, 0, 2).contiguous().permute(1, 0, 2)

    got = backend.fp8_linear_grouped(codes, apart, weight, weight_scales, torch.float32)

    want = reference.fp8_linear_grouped(codes, scales, weight, weight_scales, torch.float32)
    assert_close(got, want, BOUNDS)


@pytest.mark.gpu
@pytest.mark.parametrize("tile", STREAMS[:1] + SQUARES)
def test_a_row_has_the_same_bits_in_any_company_of_one_tile(tile: Tile) -> None:
    codes, scales = operands(21, 256)
    weight, weight_scales = fp8_weight(64, 256)

    def run(rows: slice) -> torch.Tensor:
        return triton_backend.multiply(
            codes[rows], scales[rows], weight, weight_scales, torch.float32, tile=tile
        )

    whole = run(slice(None))
    for rows in (slice(0, 1), slice(3, 9), slice(20, 21)):
        assert_same_bits(run(rows), whole[rows], what=f"rows {rows}")


@pytest.mark.gpu
def test_up_to_eight_rows_have_the_same_bits_in_any_company() -> None:
    codes, scales = operands(8, 1024)
    weight, weight_scales = fp8_weight(512, 1024)
    whole = cuda_backend.fp8_linear(codes, scales, weight, weight_scales, torch.float32)

    for rows in (slice(0, 1), slice(3, 8), slice(7, 8)):
        part = cuda_backend.fp8_linear(
            codes[rows], scales[rows], weight, weight_scales, torch.float32
        )
        assert_same_bits(part, whole[rows], what=f"rows {rows}")


@pytest.mark.gpu
def test_a_product_reads_rows_after_the_launch_that_writes_them() -> None:
    weight, weight_scales = fp8_weight(1536, 4096)
    drawn = [operands(1, 4096) for _ in range(64)]

    def run(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return cuda_backend.fp8_linear(codes, scales, weight, weight_scales, torch.float32)

    wanted = [run(*rows) for rows in drawn]
    codes, scales = torch.empty_like(drawn[0][0]), torch.empty_like(drawn[0][1])

    got: list[torch.Tensor] = []
    for fresh_codes, fresh_scales in drawn:
        scales.copy_(fresh_scales)
        got.append(run(codes.copy_(fresh_codes), scales))

    assert_same_bits(torch.cat(got), torch.cat(wanted), what="rows one after the other")


@pytest.mark.parametrize(
    ("lines", "depth", "warps"),
    [(32768, 1024, 1), (8192, 1024, 4), (4096, 8192, 8), (1536, 4096, 8), (64, 384, 2)],
)
def test_narrow_weights_are_shared_by_more_warps(lines: int, depth: int, warps: int) -> None:
    assert cuda_backend.split(lines, depth) == warps


@BACKENDS
def test_no_rows_give_no_rows(backend: ModuleType) -> None:
    codes, scales = torch.empty(0, 128, dtype=torch.float8_e4m3fn), torch.empty(0, 1)

    got = backend.fp8_linear(codes, scales, *fp8_weight(16, 128), torch.bfloat16)

    assert got.shape == (0, 16)
