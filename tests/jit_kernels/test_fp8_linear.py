"""Products of fp8 numbers against plain ones in float64."""

import importlib.util
from typing import Any

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.fp8_linear import (
    fp8_linear,
    fp8_linear_grouped,
    fp8_linear_of,
    new_weight,
    rounds_rows,
)
from jit_kernels.quant_fp8 import norm_quant, quantise_rows
from tests.jit_kernels.kernels.fp8_weights import fp8_weight
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.rows import assert_rows_independent


def numbers(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return rows of codes in float64, block by block."""
    blocks = codes.double().unflatten(-1, (-1, 128))
    return (blocks * scales.double().unsqueeze(-1)).flatten(-2)


@pytest.mark.parametrize(("rows", "columns", "depth"), [(0, 5, 128), (1, 130, 256), (17, 9, 384)])
def test_the_product_is_that_of_the_numbers_the_codes_stand_for(
    rows: int, columns: int, depth: int
) -> None:
    codes, scales = quantise_rows(torch.randn(rows, depth))
    weight, weight_scales = fp8_weight(columns, depth)

    got = fp8_linear(codes, scales, weight, weight_scales)

    by_row = weight_scales[torch.arange(columns) // 128]
    want = numbers(codes, scales) @ numbers(weight, by_row).T
    assert got.dtype == torch.bfloat16
    assert_close(got.float(), want.float(), Bounds(atol=1e-5, rtol=2**-8))


def test_groups_are_products_side_by_side() -> None:
    codes, scales = quantise_rows(torch.randn(7, 3 * 256))
    weight, weight_scales = fp8_weight(3, 10, 256)
    codes, scales = codes.view(7, 3, 256), scales.unflatten(1, (3, 2))

    got = fp8_linear_grouped(codes, scales, weight, weight_scales)

    for group in range(3):
        mine = (codes[:, group], scales[:, group], weight[group], weight_scales[group])
        assert_same_bits(got[:, group].contiguous(), fp8_linear(*mine))


def test_a_row_has_the_same_bits_in_any_company() -> None:
    weight, weight_scales = fp8_weight(24, 128)

    def run(x: torch.Tensor) -> torch.Tensor:
        return fp8_linear(*quantise_rows(x), weight, weight_scales)

    assert_rows_independent(run, [torch.randn(40, 128)])


def test_sizes_and_dtypes_that_do_not_fit_are_refused() -> None:
    codes, scales = quantise_rows(torch.randn(2, 256))
    weight, weight_scales = fp8_weight(8, 256)

    with pytest.raises(ShapeError, match="scales has shape"):
        fp8_linear(codes, scales[:, :1], weight, weight_scales)
    with pytest.raises(ShapeError, match=r"codes is torch\.float32"):
        fp8_linear(codes.float(), scales, weight, weight_scales)
    with pytest.raises(ShapeError, match="multiple of 128"):
        fp8_linear(codes, scales, weight[:, :200], weight_scales)
    with pytest.raises(ShapeError, match="weight_scales has shape"):
        fp8_linear_grouped(codes[:, None], scales[:, None], weight[None], weight_scales)


@pytest.mark.parametrize("rows", [0, 1, 2, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_of_plain_rows_is_that_of_rounded_ones(rows: int, dtype: torch.dtype) -> None:
    x, norm = torch.randn(rows, 512).to(dtype), torch.randn(512)
    weight = fp8_weight(48, 512)

    for invariant in (False, True):
        plain = fp8_linear_of(x, *weight, invariant=invariant)
        normed = fp8_linear_of(x, *weight, norm=norm, eps=1e-5, invariant=invariant)
        rounded, rounded_norm = quantise_rows(x), norm_quant(x, norm, eps=1e-5)
        assert_same_bits(plain, fp8_linear(*rounded, *weight, invariant=invariant))
        assert_same_bits(normed, fp8_linear(*rounded_norm, *weight, invariant=invariant))


def test_the_reference_rounds_rows_apart() -> None:
    assert not rounds_rows(torch.randn(1, 512).bfloat16())
    assert not rounds_rows(torch.randn(1, 512).bfloat16(), torch.randn(512))


def test_plain_rows_that_do_not_fit_are_refused() -> None:
    x, weight = torch.randn(1, 256), fp8_weight(8, 256)

    with pytest.raises(ShapeError, match="x has shape"):
        fp8_linear_of(x[:, :128], *weight)
    with pytest.raises(ShapeError, match="x has shape"):
        fp8_linear_of(x[0], *weight)
    with pytest.raises(ShapeError, match=r"x is torch\.float16"):
        fp8_linear_of(x.half(), *weight)
    with pytest.raises(ShapeError, match="norm has shape"):
        fp8_linear_of(x, *weight, norm=torch.ones(128))
    with pytest.raises(ShapeError, match=r"norm is torch\.bfloat16"):
        fp8_linear_of(x, *weight, norm=torch.ones(256).bfloat16())


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_one_launch_takes_one_row_of_bfloat16_that_lies_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jit_kernels.fp8_linear import one_row_backend, separate_backend

    launches: list[tuple[Any, ...]] = []
    monkeypatch.setattr(one_row_backend, "call", lambda *args: launches.append(args))
    monkeypatch.setattr(separate_backend, "fp8_linear_of", lambda *_: torch.zeros(()))
    weight = fp8_weight(32, 1024)

    def one(
        x: torch.Tensor,
        norm: torch.Tensor | None = None,
        *,
        weight: tuple[torch.Tensor, torch.Tensor] = weight,
        invariant: bool = False,
    ) -> bool:
        """Say whether there was one launch, which `rounds_rows` has foretold."""
        launches.clear()
        out = one_row_backend.fp8_linear_of(x, *weight, norm, 1e-6, invariant)
        assert bool(launches) == (out.shape == (1, 32))
        assert one_row_backend.rounds_rows(x, norm) or not launches
        return bool(launches)

    wide = torch.randn(1, 1536).bfloat16()
    x, norm = wide[:, :1024], torch.randn(1024)
    assert one(x)
    assert one(x, norm)
    assert one(wide[:, 8:1032])
    assert not one(x, invariant=True)
    assert not one(x.expand(2, -1))
    assert not one(x[:0])
    assert not one(x.float())
    assert not one(wide[:, 4:1028])
    assert not one(x, torch.randn(1028)[1:1025])
    assert not one(x, weight=fp8_weight(40, 1024))
    long, longer = torch.randn(1, 8192).bfloat16(), torch.randn(1, 8320).bfloat16()
    assert one(long, weight=fp8_weight(32, 8192))
    assert not one(long, torch.randn(8192), weight=fp8_weight(32, 8192))
    assert not one(longer, weight=fp8_weight(32, 8320))
    # As many channels as norms of another kernel have.
    assert not one(wide[:, :640], torch.randn(640), weight=fp8_weight(32, 640))


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("groups", [0, 3])
def test_a_new_weight_is_zeros_that_are_noted(
    groups: int, invariant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[tuple[Any, ...]] = []
    monkeypatch.setattr("jit_kernels.fp8_linear.note", lambda *given: noted.append(given))
    parts, cpu = {"a": 128, "b": 256}, torch.device("cpu")

    codes, scales = new_weight(parts, 512, cpu, groups=groups, invariant=invariant)

    many = (groups,) if groups else ()
    assert (codes.shape, codes.dtype) == ((*many, 384, 512), torch.float8_e4m3fn)
    assert (scales.shape, scales.dtype) == ((*many, 3, 4), torch.float32)
    assert not codes.float().any()
    assert not scales.any()
    ((op, sizes, weight),) = noted
    assert op == "fp8_linear" + "_grouped" * bool(groups) + "_invariant" * invariant
    assert tuple(sizes) == codes.shape
    assert weight is codes


@pytest.mark.parametrize(
    ("parts", "width", "fault"),
    [
        ({"wq": 128, "wkv": 64}, 128, "wkv has 64 channels, expected a multiple of 128"),
        ({"wq": 0}, 128, "wq has 0 channels"),
        ({"wq": 128}, 200, "the input has 200 channels"),
    ],
)
def test_a_weight_that_no_block_fits_is_refused(
    parts: dict[str, int], width: int, fault: str
) -> None:
    with pytest.raises(ShapeError, match=fault):
        new_weight(parts, width, torch.device("cpu"))
