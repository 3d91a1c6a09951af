"""Stacked and grouped products over fp8 weights as files hold them."""

import pytest
import torch
from torch import Tensor

import layers.linear.fp8 as fp8
from jit_kernels.checks import ShapeError
from jit_kernels.fp8_linear import fp8_linear
from jit_kernels.out_rope_quant import out_rope_quant
from jit_kernels.quant_fp8 import norm_quant, quantise_rows, silu_mul_quant
from layers.blocks.norm import RmsNorm
from layers.linear.contract import Named, Rows
from layers.linear.fp8 import Fp8GroupedLinear, Fp8Linear
from layers.weights.quant import dequantise_fp8, quantise_fp8
from layers.weights.weight_target import Fp8Target
from tests.testing.compare import Bounds, assert_close, assert_same_bits

# Rows and weights are compared as rounded, so only sums and the result's own rounding to bfloat16
# are left.
ROUNDED = Bounds(atol=1e-2, rtol=2**-7)


def _fp8(rows: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    codes, scales = quantise_fp8(torch.randn(rows, width) / width**0.5)
    numbers = torch.empty(rows, width)
    dequantise_fp8(codes, scales, numbers)
    return codes, scales, numbers


def _targets(named: Named) -> dict[str, Fp8Target]:
    return {name: target for name, target in named if isinstance(target, Fp8Target)}


def _filled(linear: Fp8Linear | Fp8GroupedLinear) -> None:
    for target in _targets(linear.named_weights("")).values():
        target.put_plain(torch.randn(target.shape))


def _rounded(codes: Tensor, scales: Tensor) -> Tensor:
    """The numbers of rounded rows."""
    return codes.float() * scales.repeat_interleave(128, -1)


def _norm(width: int, device: torch.device) -> RmsNorm:
    norm = RmsNorm(width, eps=1e-5, name="norm", device=device)
    norm.weight.normal_()
    return norm


def _turns(tokens: int) -> Tensor:
    """Return rotations of 64 channels, [T, 2, 64]."""
    angle = torch.randn(tokens, 32).repeat_interleave(2, 1)
    return torch.stack((angle.cos(), angle.sin() * torch.tensor([-1.0, 1.0] * 32)), 1)


def test_each_named_part_gives_its_columns(device: torch.device) -> None:
    linear = Fp8Linear(384, {"a": 128, "b.c": 256}, device=device)
    parts = {"x.a.weight": _fp8(128, 384), "x.b.c.weight": _fp8(256, 384)}
    for name, target in _targets(linear.named_weights("x.")).items():
        target.put_fp8(*parts.pop(name)[:2])
    assert not parts
    x = torch.randn(5, 384)

    got = linear(linear.rows(x))

    numbers = torch.empty(384, 384)
    dequantise_fp8(linear.weight, linear.scales, numbers)
    assert got.dtype == torch.bfloat16
    assert_close(got.float(), _rounded(*quantise_rows(x)) @ numbers.T, ROUNDED)


def test_parts_lie_one_after_another(device: torch.device) -> None:
    linear = Fp8Linear(128, {"a": 128, "b": 256}, device=device)
    weights = {"a.weight": _fp8(128, 128), "b.weight": _fp8(256, 128)}

    for name, target in _targets(linear.named_weights("")).items():
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
    _filled(linear)
    x, norm = torch.randn(rows, 512).bfloat16(), _norm(512, device)

    plain, normed = linear(linear.rows(x)), linear(linear.rows(x, norm))

    assert_same_bits(plain, linear(Rows(x, rounded=quantise_rows(x))))
    codes = norm_quant(x, norm.weight, eps=norm.eps)
    assert_same_bits(normed, linear(Rows(x, rounded=codes)))


@pytest.mark.parametrize("themselves", [False, True])
def test_products_share_codes_unless_they_round_rows_themselves(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, themselves: bool
) -> None:
    linear = Fp8Linear(512, {"a": 128}, device=device)
    invariant = Fp8Linear(512, {"a": 128}, device=device, invariant=True)
    _filled(linear)
    weight = linear.weight, linear.scales
    x, norm = torch.randn(1, 512).bfloat16(), _norm(512, device)
    monkeypatch.setattr(fp8, "rounds_rows", lambda *_: themselves)

    for rows, want in (
        (linear.rows(x), quantise_rows(x)),
        (linear.rows(x, norm), norm_quant(x, norm.weight, eps=norm.eps)),
    ):
        assert (rows.rounded is None) == themselves
        assert_same_bits(linear(rows), fp8_linear(*want, *weight))
    assert invariant.rows(x).rounded is not None


def test_gated_rows_are_rounded(device: torch.device) -> None:
    linear = Fp8Linear(256, {"w2": 128}, device=device)
    _filled(linear)
    hidden = torch.randn(3, 512).bfloat16()

    got = linear(linear.gated(hidden, 2.5))

    want = fp8_linear(*silu_mul_quant(hidden, limit=2.5), linear.weight, linear.scales)
    assert_same_bits(got, want)


def test_groups_read_their_own_channels(device: torch.device) -> None:
    grouped = Fp8GroupedLinear(3, 128, 256, name="wo_a", device=device)
    stored, block_scales, numbers = _fp8(3 * 128, 256)
    ((name, target),) = _targets(grouped.named_weights("attn.")).items()
    target.put_fp8(stored, block_scales)
    # Two heads of 128 channels a group, of which 64 are turned back.
    heads, rotation = torch.randn(5, 6, 128).bfloat16(), _turns(5)

    got = grouped(heads.clone(), rotation)

    codes, scales = out_rope_quant(heads.clone(), rotation, groups=3)
    x = _rounded(codes.flatten(1), scales.flatten(1)).unflatten(1, (3, 256))
    want = torch.einsum("tgk,gnk->tgn", x, numbers.unflatten(0, (3, 128))).flatten(1)
    assert name == "attn.wo_a.weight"
    assert target.shape == (3 * 128, 256)
    assert got.dtype == torch.bfloat16
    assert_close(got.float(), want, ROUNDED)


def test_invariant_layers_give_a_row_the_same_bits_in_any_company(device: torch.device) -> None:
    # What a library does depends on sizes: on a device, those of the true network.
    big = device.type == "cuda"
    width, columns, count, inner = (4096, 1536, 8, 1024) if big else (256, 384, 2, 128)
    dense = Fp8Linear(width, {"a": 128, "b": columns - 128}, device=device, invariant=True)
    groups = Fp8GroupedLinear(count, inner, width, name="c", device=device, invariant=True)
    for linear in (dense, groups):
        _filled(linear)
    x = torch.randn(300, count * width).bfloat16()
    norm, rotation = _norm(width, device), _turns(300)

    def run(rows: slice) -> list[Tensor]:
        one = x[rows, :width].contiguous()
        heads = x[rows].view(-1, count * width // 128, 128).clone()
        return [
            dense(dense.rows(one)),
            dense(dense.rows(one, norm)),
            dense(dense.gated(x[rows, : 2 * width].contiguous(), 2.5)),
            groups(heads, rotation[rows]),
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
