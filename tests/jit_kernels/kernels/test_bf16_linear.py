"""Products of bfloat16 numbers on the device, against float64 and in every tile."""

from types import ModuleType

import pytest
import torch

from jit_kernels.bf16_linear import cuda_backend, reference, triton_backend
from jit_kernels.bf16_linear.triton_backend import Tile
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import Bounds, assert_close, assert_same_bits

BOUNDS = Bounds(atol=1e-4, rtol=1e-4)
ROUNDED = Bounds(atol=2e-5, rtol=2e-5)
SHAPES = with_large(
    [(1, 33, 70), (3, 130, 320), (17, 20, 96)],
    [
        (1, 64, 4096), (5, 512, 4096), (16, 2304, 4096), (31, 256, 4096), (64, 2048, 4096),
        (130, 1000, 999), (1000, 2304, 4096), (1, 256, 4096), (8, 1024, 4096), (3, 2624, 4096),
        (7, 70, 1032), (2, 1, 8), (4, 17, 5000), (6, 4099, 520), (8, 8192, 72),
    ],
)  # fmt: skip
BACKENDS = pytest.mark.parametrize("backend", with_large([triton_backend], [cuda_backend]))
STREAMS = [Tile(16, 8, 32, 8, 8, 3), Tile(32, 16, 64, 2, 4, 2)]
SQUARES = [Tile(64, 64, 32, 1, 4, 3)]


def operands(*shape: int) -> torch.Tensor:
    """Return normal numbers over the square root of the channels, in bfloat16."""
    return (torch.randn(shape) * shape[-1] ** -0.25).bfloat16()


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns", "depth"), SHAPES)
def test_the_product_is_exact_to_float32(
    backend: ModuleType, rows: int, columns: int, depth: int, dtype: torch.dtype
) -> None:
    x, weight = operands(rows, depth), operands(columns, depth)

    got = backend.bf16_linear(x, weight, dtype)

    want = x.double() @ weight.double().T
    assert got.dtype == dtype
    if dtype == torch.float32:
        assert_close(got, want.float(), BOUNDS)
    else:
        _assert_rounded(got, want)


def _assert_rounded(got: torch.Tensor, want: torch.Tensor) -> None:
    # What float32 may be off by comes before the rounding, whose half a step comes on top.
    off = (ROUNDED.rtol * want.abs()).clamp_min(ROUNDED.atol)
    low, high = (want - off).bfloat16(), (want + off).bfloat16()
    wrong = (got < low) | (got > high) | got.isnan()
    assert not wrong.any(), f"{int(wrong.sum())} off: {got[wrong][:3]}, want {want[wrong][:3]}"


@pytest.mark.parametrize("tile", STREAMS + SQUARES)
def test_every_tile_gives_the_product(tile: Tile) -> None:
    x, weight = operands(19, 330), operands(70, 330)

    got = triton_backend.multiply(x, weight, torch.float32, tile=tile)

    assert_close(got, reference.bf16_linear(x, weight, torch.float32), BOUNDS)


@pytest.mark.gpu
@pytest.mark.parametrize("tile", STREAMS[:1] + SQUARES)
def test_a_row_has_the_same_bits_in_any_company_of_one_tile(tile: Tile) -> None:
    x, weight = operands(21, 200), operands(64, 200)
    whole = triton_backend.multiply(x, weight, torch.float32, tile=tile)

    for rows in (slice(0, 1), slice(3, 9), slice(20, 21)):
        part = triton_backend.multiply(x[rows], weight, torch.float32, tile=tile)
        assert_same_bits(part, whole[rows], what=f"rows {rows}")


@pytest.mark.gpu
@pytest.mark.parametrize(("columns", "depth"), [(256, 4096), (1024, 4096), (70, 1032), (4099, 96)])
def test_up_to_eight_rows_have_the_same_bits_in_any_company(columns: int, depth: int) -> None:
    x, weight = operands(8, depth), operands(columns, depth)
    whole = cuda_backend.bf16_linear(x, weight, torch.float32)

    for rows in (slice(0, 1), slice(3, 8), slice(7, 8)):
        part = cuda_backend.bf16_linear(x[rows], weight, torch.float32)
        assert_same_bits(part, whole[rows], what=f"rows {rows}")


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "apart", "skipped"), [(5, 1040, 0), (1, 1040, 8), (3, 1041, 0)])
def test_nothing_is_read_beside_rows_and_weight(rows: int, apart: int, skipped: int) -> None:
    depth, columns = 1032, 40
    around = torch.full((8 * apart,), torch.nan, dtype=torch.bfloat16)
    x = around[skipped:].as_strided((rows, depth), (apart, 1))
    x.copy_(operands(rows, depth))
    lines = torch.full((columns + 2, depth), torch.nan, dtype=torch.bfloat16)
    lines[1:-1] = operands(columns, depth)

    got = cuda_backend.bf16_linear(x, lines[1:-1], torch.float32)

    assert cuda_backend.takes(x, lines[1:-1]) == (apart % 8 == 0)
    assert_close(got, reference.bf16_linear(x, lines[1:-1], torch.float32), BOUNDS)


@pytest.mark.gpu
def test_a_product_reads_rows_after_the_launch_that_writes_them() -> None:
    weight = operands(256, 4096)
    drawn = [operands(1, 4096) for _ in range(64)]
    wanted = [cuda_backend.bf16_linear(x, weight, torch.float32) for x in drawn]
    rows = torch.empty_like(drawn[0])

    got: list[torch.Tensor] = []
    for x in drawn:
        got.append(cuda_backend.bf16_linear(rows.copy_(x), weight, torch.float32))

    assert_same_bits(torch.cat(got), torch.cat(wanted), what="rows one after the other")


@pytest.mark.parametrize(
    ("lines", "depth", "blocks"),
    [(256, 4096, 8), (1024, 4096, 4), (2624, 4096, 2), (8192, 4096, 1), (64, 1032, 2), (1, 8, 1)],
)
def test_narrow_weights_are_shared_by_more_blocks(lines: int, depth: int, blocks: int) -> None:
    assert cuda_backend.cluster(lines, depth) == blocks


@BACKENDS
def test_no_rows_give_no_rows(backend: ModuleType) -> None:
    got = backend.bf16_linear(operands(0, 64), operands(16, 64), torch.bfloat16)

    assert got.shape == (0, 16)
