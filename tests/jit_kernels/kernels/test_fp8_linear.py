"""Products of a few rows of fp8 numbers on the device, against the reference."""

import pytest
import torch

from jit_kernels.fp8_linear import cuda_backend, reference
from jit_kernels.quant_fp8.reference import quantise_rows
from tests.jit_kernels.kernels.fp8_weights import fp8_weight
from tests.testing.compare import Bounds, assert_close, assert_same_bits

# Tensor cores keep fewer bits than float32 while they add up a block of 128 channels.
BOUNDS = Bounds(atol=1e-2, rtol=2**-7, cosine=0.9999)
SHAPES = [
    (1, 4096, 4096), (7, 1536, 4096), (8, 32768, 1024), (5, 528, 384), (2, 16, 128), (3, 272, 1664),
    (4, 48, 4224), (8, 1536, 4096), (1, 144, 640),
]  # fmt: skip
GROUPED = [(3, 2, 48, 256), (1, 8, 1024, 4096), (6, 8, 1024, 4096)]


def operands(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return quantised rows of normal numbers, channels of unlike sizes."""
    x = torch.randn(shape) * torch.logspace(-1, 1, shape[-1])
    codes, scales = quantise_rows(x.flatten(1))
    return codes.view(shape), scales.unflatten(1, (-1, shape[-1] // 128)).view(*shape[:-1], -1)


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns", "depth"), SHAPES)
def test_the_product_equals_the_reference(rows: int, columns: int, depth: int) -> None:
    codes, scales = operands(rows, depth)
    weight, weight_scales = fp8_weight(columns, depth)

    got = cuda_backend.fp8_linear(codes, scales, weight, weight_scales)

    assert cuda_backend.takes(codes, weight, weight_scales)
    assert_close(got, reference.fp8_linear(codes, scales, weight, weight_scales), BOUNDS)


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "groups", "columns", "depth"), GROUPED)
def test_groups_are_products_side_by_side(rows: int, groups: int, columns: int, depth: int) -> None:
    codes, scales = operands(rows, groups, depth)
    weight, weight_scales = fp8_weight(groups, columns, depth)

    got = cuda_backend.fp8_linear_grouped(codes, scales, weight, weight_scales)

    assert cuda_backend.takes_groups(codes, scales)
    assert_close(got, reference.fp8_linear_grouped(codes, scales, weight, weight_scales), BOUNDS)


def test_few_rows_of_whole_lines_are_taken_as_they_lie() -> None:
    codes, scales = operands(9, 384)
    weight = fp8_weight(48, 384)

    assert cuda_backend.takes(codes[:8], *weight)
    assert cuda_backend.takes(codes[:8, 128:256], *fp8_weight(48, 128))
    assert not cuda_backend.takes(codes, *weight)
    assert not cuda_backend.takes(codes[:0], *weight)
    assert not cuda_backend.takes(codes[:1], *fp8_weight(40, 384))
    assert not cuda_backend.takes(codes[:1, 8:136], *fp8_weight(48, 128))
    groups = codes.view(9, 3, 128), scales.view(9, 3, 1)
    assert cuda_backend.takes_groups(*groups)
    assert not cuda_backend.takes_groups(
        codes.view(9, 3, 128)[:, ::2], scales.view(9, 3, 1)[:, ::2]
    )
    apart = scales.view(9, 3, 1).permute(1, 0, 2).contiguous().permute(1, 0, 2)
    assert not cuda_backend.takes_groups(groups[0], apart)


@pytest.mark.gpu
def test_up_to_eight_rows_have_the_same_bits_in_any_company() -> None:
    codes, scales = operands(8, 1024)
    weight, weight_scales = fp8_weight(512, 1024)
    whole = cuda_backend.fp8_linear(codes, scales, weight, weight_scales)

    for rows in (slice(0, 1), slice(3, 8), slice(7, 8)):
        part = cuda_backend.fp8_linear(codes[rows], scales[rows], weight, weight_scales)
        assert_same_bits(part, whole[rows], what=f"rows {rows}")


@pytest.mark.gpu
def test_a_product_reads_rows_after_the_launch_that_writes_them() -> None:
    weight, weight_scales = fp8_weight(1536, 4096)
    drawn = [operands(1, 4096) for _ in range(64)]

    def run(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return cuda_backend.fp8_linear(codes, scales, weight, weight_scales)

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
