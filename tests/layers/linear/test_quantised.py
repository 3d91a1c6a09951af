"""Stacked, grouped and plain products over weights as files hold them."""

import pytest
import torch
from torch import Tensor

import layers.linear.quantised as fused
from jit_kernels.checks import ShapeError
from jit_kernels.quant_fp8 import norm_quant, quantise_rows
from layers.linear.quantised import Bf16Linear, Fp8GroupedLinear, Fp8Linear, Fp8Rows
from layers.weights.quant import dequantise_fp8, quantise_fp8
from tests.testing.compare import Bounds, assert_close, assert_same_bits

# Rows and weights are compared as rounded, so only sums and the result's own rounding to bfloat16
# are left. Hopper adds fp8 products in about 14 bits.
ROUNDED = Bounds(atol=1e-2, rtol=2**-7)
FP8_SUMMED = Bounds(atol=5e-3, rtol=1e-3)
SUMMED = Bounds(atol=1e-3, rtol=1e-5)


def _fp8(rows: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    codes, scales = quantise_fp8(torch.randn(rows, width) / width**0.5)
    numbers = torch.empty(rows, width)
    dequantise_fp8(codes, scales, numbers)
    return codes, scales, numbers


def _rounded(codes: Tensor, scales: Tensor) -> Tensor:
    """The numbers of rounded rows."""
    return codes.float() * scales.repeat_interleave(128, -1)


def test_each_named_part_gives_its_columns(device: torch.device) -> None:
    linear = Fp8Linear(384, {"a": 128, "b.c": 256}, device=device)
    parts = {"x.a.weight": _fp8(128, 384), "x.b.c.weight": _fp8(256, 384)}
    for name, target in linear.named_weights("x."):
        target.put_fp8(*parts.pop(name)[:2])
    assert not parts
    codes, scales = quantise_rows(torch.randn(5, 384))

    got = linear(codes, scales)
    exact = linear(codes, scales, out_dtype=torch.float32)

    numbers = torch.empty(384, 384)
    dequantise_fp8(linear.weight, linear.scales, numbers)
    want = _rounded(codes, scales) @ numbers.T
    assert got.dtype == torch.bfloat16
    assert_close(got.float(), want, ROUNDED)
    assert_close(exact, want, FP8_SUMMED)


def test_parts_lie_one_after_another(device: torch.device) -> None:
    linear = Fp8Linear(128, {"a": 128, "b": 256}, device=device)
    weights = {"a.weight": _fp8(128, 128), "b.weight": _fp8(256, 128)}

    for name, target in linear.named_weights(""):
        target.put_fp8(*weights[name][:2])

    numbers = torch.empty(384, 128)
    dequantise_fp8(linear.weight, linear.scales, numbers)
    assert torch.equal(numbers, torch.cat([part[2] for part in weights.values()]))


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_rows_that_are_rounded_by_need_give_the_product_of_rounded_ones(
    device: torch.device, rows: int, invariant: bool
) -> None:
    linear = Fp8Linear(512, {"a": 128}, device=device, invariant=invariant)
    for _, target in linear.named_weights(""):
        target.put_plain(torch.randn(target.shape))
    x, norm = torch.randn(rows, 512).bfloat16(), torch.randn(512)

    plain = linear.of(Fp8Rows(x, invariant=invariant))
    normed = linear.of(Fp8Rows(x, norm, eps=1e-5, invariant=invariant))

    assert_same_bits(plain, linear(*quantise_rows(x)))
    assert_same_bits(normed, linear(*norm_quant(x, norm, eps=1e-5)))


def test_products_share_codes_unless_they_round_rows_themselves(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear = Fp8Linear(512, {"a": 128}, device=device)
    for _, target in linear.named_weights(""):
        target.put_plain(torch.randn(target.shape))
    x, norm = torch.randn(1, 512).bfloat16(), torch.randn(512)

    for themselves in (False, True):
        monkeypatch.setattr(fused, "rounds_rows", lambda *_, said=themselves: said)
        for rows, want in (
            (Fp8Rows(x), quantise_rows(x)),
            (Fp8Rows(x, norm, eps=1e-5), norm_quant(x, norm, eps=1e-5)),
        ):
            assert (rows.rounded is None) == themselves
            assert_same_bits(linear.of(rows), linear(*want))
        assert Fp8Rows(x, invariant=True).rounded is not None


def test_groups_read_their_own_channels(device: torch.device) -> None:
    grouped = Fp8GroupedLinear(3, 128, 256, name="wo_a", device=device)
    stored, block_scales, numbers = _fp8(3 * 128, 256)
    ((name, target),) = grouped.named_weights("attn.")
    target.put_fp8(stored, block_scales)
    codes, scales = quantise_rows(torch.randn(5, 3 * 256))

    got = grouped(codes.unflatten(1, (3, 256)), scales.unflatten(1, (3, 2)))

    x = _rounded(codes, scales).unflatten(1, (3, 256))
    want = torch.einsum("tgk,gnk->tgn", x, numbers.unflatten(0, (3, 128)))
    assert name == "attn.wo_a.weight"
    assert target.shape == (3 * 128, 256)
    assert got.dtype == torch.bfloat16
    assert_close(got.float(), want, ROUNDED)


def test_bfloat16_products_are_exact_but_for_their_sum(device: torch.device) -> None:
    linear = Bf16Linear(96, {"a": 3, "b": 64}, device=device)
    views = dict(linear.named_weights("x."))
    for view in views.values():
        view.copy_(torch.randn(view.shape))
    x = torch.randn(4, 96).bfloat16()

    got = linear(x)

    want = x.float() @ torch.cat([view.float() for view in views.values()]).T
    assert list(views) == ["x.a.weight", "x.b.weight"]
    assert_close(got, want, SUMMED)
    assert linear(x, out_dtype=torch.bfloat16).dtype == torch.bfloat16


def test_invariant_layers_give_a_row_the_same_bits_in_any_company(device: torch.device) -> None:
    # What a library does depends on sizes: on a device, those of the true network.
    big = device.type == "cuda"
    width, columns, count, inner = (4096, 1536, 8, 1024) if big else (256, 384, 2, 128)
    dense = Fp8Linear(width, {"a": 128, "b": columns - 128}, device=device, invariant=True)
    groups = Fp8GroupedLinear(count, inner, width, name="c", device=device, invariant=True)
    plain = Bf16Linear(width, {"d": 2 * columns + 64}, device=device, invariant=True)
    for linear in (dense, groups):
        for _, target in linear.named_weights(""):
            target.put_plain(torch.randn(target.shape))
    plain.weight.copy_(torch.randn(plain.weight.shape))
    x = torch.randn(300, count * width).bfloat16()

    def run(rows: slice) -> list[Tensor]:
        one, all_of_them = quantise_rows(x[rows, :width]), quantise_rows(x[rows])
        return [
            dense(*one),
            dense(*one, out_dtype=torch.float32),
            groups(*(part.unflatten(1, (count, -1)) for part in all_of_them)),
            plain(x[rows, :width]),
            plain(x[rows, :width], out_dtype=torch.bfloat16),
        ]

    whole = run(slice(None))
    for first, last in ((0, 1), (7, 16), (33, 97), (100, 300), (299, 300)):
        for nth, (got, want) in enumerate(zip(run(slice(first, last)), whole, strict=True)):
            assert_same_bits(got, want[first:last], what=f"product {nth} of row {first}")


def test_sizes_that_no_block_fits_are_refused(device: torch.device) -> None:
    with pytest.raises(ShapeError, match="wkv has 64 channels, expected a multiple of 128"):
        Fp8Linear(128, {"wq": 128, "wkv": 64}, device=device)
    with pytest.raises(ShapeError, match="the input has 200 channels"):
        Fp8Linear(200, {"wq": 128}, device=device)
    with pytest.raises(ShapeError, match="wo_a has 64 channels"):
        Fp8GroupedLinear(2, 64, 128, name="wo_a", device=device)


@pytest.mark.parametrize("rows", [1, 9, 70])
def test_products_are_rehearsed_with_rows_as_they_come(device: torch.device, rows: int) -> None:
    products = (
        Fp8Linear(256, {"a": 128}, device=device),
        Fp8GroupedLinear(2, 128, 256, name="b", device=device),
        Bf16Linear(256, {"c": 64}, device=device),
    )

    for product in products:
        product.rehearse(rows)

    assert len({product.sizes for product in products}) == 3
    assert Fp8Linear(256, {"x": 128}, device=device).sizes == products[0].sizes
