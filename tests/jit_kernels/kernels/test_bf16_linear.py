"""Products of a few rows of bfloat16 numbers on the device, against float64."""

import pytest
import torch

from jit_kernels.bf16_linear import cuda_backend, reference
from tests.testing.compare import Bounds, assert_close, assert_same_bits

BOUNDS = Bounds(atol=1e-4, rtol=1e-4)
SHAPES = [
    (1, 64, 4096), (5, 512, 4096), (1, 256, 4096), (8, 1024, 4096), (3, 2624, 4096), (7, 70, 1032),
    (2, 1, 8), (4, 17, 5000), (6, 4099, 520), (8, 8192, 72), (3, 130, 320),
]  # fmt: skip


def operands(*shape: int) -> torch.Tensor:
    """Return normal numbers over the square root of the channels, in bfloat16."""
    return (torch.randn(shape) * shape[-1] ** -0.25).bfloat16()


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns", "depth"), SHAPES)
def test_the_product_is_exact_to_float32(rows: int, columns: int, depth: int) -> None:
    x, weight = operands(rows, depth), operands(columns, depth)

    got = cuda_backend.bf16_linear(x, weight)

    assert cuda_backend.takes(x, weight)
    assert_close(got, (x.double() @ weight.double().T).float(), BOUNDS)


@pytest.mark.gpu
@pytest.mark.parametrize(("columns", "depth"), [(256, 4096), (1024, 4096), (70, 1032), (4099, 96)])
def test_up_to_eight_rows_have_the_same_bits_in_any_company(columns: int, depth: int) -> None:
    x, weight = operands(8, depth), operands(columns, depth)
    whole = cuda_backend.bf16_linear(x, weight)

    for rows in (slice(0, 1), slice(3, 8), slice(7, 8)):
        part = cuda_backend.bf16_linear(x[rows], weight)
        assert_same_bits(part, whole[rows], what=f"rows {rows}")


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "apart", "skipped"), [(5, 1040, 0), (1, 1040, 8)])
def test_nothing_is_read_beside_rows_and_weight(rows: int, apart: int, skipped: int) -> None:
    depth, columns = 1032, 40
    around = torch.full((8 * apart,), torch.nan, dtype=torch.bfloat16)
    x = around[skipped:].as_strided((rows, depth), (apart, 1))
    x.copy_(operands(rows, depth))
    lines = torch.full((columns + 2, depth), torch.nan, dtype=torch.bfloat16)
    lines[1:-1] = operands(columns, depth)

    got = cuda_backend.bf16_linear(x, lines[1:-1])

    assert cuda_backend.takes(x, lines[1:-1])
    assert_close(got, reference.bf16_linear(x, lines[1:-1]), BOUNDS)


@pytest.mark.gpu
def test_a_product_reads_rows_after_the_launch_that_writes_them() -> None:
    weight = operands(256, 4096)
    drawn = [operands(1, 4096) for _ in range(64)]
    wanted = [cuda_backend.bf16_linear(x, weight) for x in drawn]
    rows = torch.empty_like(drawn[0])

    got: list[torch.Tensor] = []
    for x in drawn:
        got.append(cuda_backend.bf16_linear(rows.copy_(x), weight))

    assert_same_bits(torch.cat(got), torch.cat(wanted), what="rows one after the other")


@pytest.mark.parametrize(
    ("lines", "depth", "blocks"),
    [(256, 4096, 8), (1024, 4096, 4), (2624, 4096, 2), (8192, 4096, 1), (64, 1032, 2), (1, 8, 1)],
)
def test_narrow_weights_are_shared_by_more_blocks(lines: int, depth: int, blocks: int) -> None:
    assert cuda_backend.cluster(lines, depth) == blocks


def test_few_rows_of_a_narrow_weight_are_taken_as_they_lie() -> None:
    x, weight = operands(9, 128), operands(40, 128)

    assert cuda_backend.takes(x[:8], weight)
    assert cuda_backend.takes(x[:8, 8:72], operands(40, 64))
    assert not cuda_backend.takes(x, weight)
    assert not cuda_backend.takes(x[:0], weight)
    assert not cuda_backend.takes(x[:1, 4:68], operands(40, 64))
    assert not cuda_backend.takes(x[:1, :68], operands(40, 68))
    assert not cuda_backend.takes(x[:1, :64], weight[:, :64])
    assert not cuda_backend.takes(x[:1], operands(8193, 128))
