"""Quantised storage of named weights: what is put in comes out, as the numbers it stands for."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from jit_kernels.checks import ShapeError
from jit_kernels.expert_weights.reference import dense_fp4, dense_fp8
from layers.weights.quant import dequantise_fp4, dequantise_fp8, quantise_fp4, quantise_fp8
from layers.weights.weight_target import Fp4Target, Fp8Target, TwinTarget, WeightTarget
from tests.testing.compare import assert_same_bits

ROWS, COLUMNS = 256, 384
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where the storage lies; what is put there comes from the CPU."""
    return torch.device(request.param)


def _fp8(device: torch.device) -> Fp8Target:
    codes = torch.zeros(ROWS, COLUMNS, dtype=torch.float8_e4m3fn, device=device)
    return Fp8Target(codes, torch.zeros(ROWS // 128, COLUMNS // 128, device=device))


def _fp4(device: torch.device) -> Fp4Target:
    words = torch.zeros(ROWS, COLUMNS // 4, dtype=torch.int16, device=device)
    scales = torch.zeros(ROWS, COLUMNS // 32, dtype=torch.uint8, device=device)
    return Fp4Target(words, scales)


def _twin(device: torch.device) -> TwinTarget:
    return TwinTarget(_fp4(device), _fp8(device))


Make = Callable[[torch.device], WeightTarget]
MAKERS: list[Make] = [_fp8, _fp4, _twin]


def _numbers(target: WeightTarget) -> list[Tensor]:
    """The numbers of each storage of a target; -0 as 0."""
    if isinstance(target, TwinTarget):
        return _numbers(target.fp4) + _numbers(target.fp8)
    if isinstance(target, Fp8Target):
        return [dense_fp8(target.codes.cpu(), target.scales.cpu()) + 0.0]
    assert isinstance(target, Fp4Target)
    return [dense_fp4(target.words.cpu(), target.scales.cpu()) + 0.0]


def _weight() -> Tensor:
    return torch.randn(ROWS, COLUMNS) / COLUMNS**0.5


def _as_fp4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales, and the numbers they stand for; -0 as 0."""
    packed, scales = quantise_fp4(weight)
    numbers = torch.empty_like(weight)
    dequantise_fp4(packed, scales, numbers)
    return packed, scales, numbers + 0.0


@pytest.mark.parametrize("make", MAKERS)
def test_fp4_is_kept_to_the_bit(make: Make, device: torch.device) -> None:
    target = make(device)
    packed, scales, want = _as_fp4(_weight())

    assert target.shape == (ROWS, COLUMNS)
    assert target.device.type == device.type
    assert target.put_fp4(packed, scales) == 0

    for got in _numbers(target):
        assert_same_bits(got, want)


@pytest.mark.parametrize("make", MAKERS)
def test_fp4_scales_may_be_floats(make: Make, device: torch.device) -> None:
    target = make(device)
    packed, scales, want = _as_fp4(_weight())

    target.put_fp4(packed, scales.to(torch.float32))

    for got in _numbers(target):
        assert_same_bits(got, want)
    for wrong in (0.75, 4.0, 0.0, -0.5):
        with pytest.raises(ShapeError, match="fp4"):
            target.put_fp4(packed, torch.full((ROWS, COLUMNS // 32), wrong))


@pytest.mark.parametrize("make", [_fp8, _twin])
def test_what_fp8_cannot_express_of_fp4_is_counted(make: Make, device: torch.device) -> None:
    scales = torch.full((ROWS, COLUMNS // 32), 120, dtype=torch.uint8)
    scales[5, 0] = 120 - 20
    packed = torch.full((ROWS, COLUMNS // 2), 0x33, dtype=torch.uint8)

    assert make(device).put_fp4(packed, scales.view(torch.float8_e8m0fnu)) == 32


@pytest.mark.parametrize("scale_dtype", [torch.float8_e8m0fnu, torch.float32])
def test_fp8_is_kept_to_the_bit(scale_dtype: torch.dtype, device: torch.device) -> None:
    target = _fp8(device)
    codes, scales = quantise_fp8(_weight())
    want = torch.empty(ROWS, COLUMNS)
    dequantise_fp8(codes, scales, want)

    target.put_fp8(codes, scales.to(torch.float32).to(scale_dtype))

    assert_same_bits(_numbers(target)[0], want + 0.0)


@pytest.mark.parametrize("make", [_fp4, _twin])
def test_fp8_is_refused_by_fp4(make: Make, device: torch.device) -> None:
    target = make(device)

    assert "precision" in (target.why_not("fp8") or "")
    assert target.why_not("fp4") is None
    assert target.why_not("plain") is None
    assert _fp8(device).why_not("fp8") is None
    with pytest.raises(ShapeError, match="precision"):
        target.put_fp8(*quantise_fp8(_weight()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("make", MAKERS)
def test_plain_numbers_are_quantised(make: Make, dtype: torch.dtype, device: torch.device) -> None:
    target, weight = make(device), _weight().to(dtype)
    want = _as_fp4(weight.to(torch.float32))[2]
    if make is _fp8:
        dequantise_fp8(*quantise_fp8(weight), want)

    target.put_plain(weight)

    for got in _numbers(target):
        assert_same_bits(got, want + 0.0)


@pytest.mark.parametrize("gain", [0.02, 1.0, 1.3])
@pytest.mark.parametrize("make", MAKERS)
def test_random_numbers_have_the_variance_of_their_input(
    make: Make, gain: float, device: torch.device
) -> None:
    targets = [make(device), make(device)]
    for target in targets:
        target.fill_random(torch.Generator(device).manual_seed(3), gain)

    numbers = _numbers(targets[0])
    assert all(map(torch.equal, numbers, _numbers(targets[1])))
    assert all(torch.equal(part, numbers[0]) for part in numbers)
    assert float(numbers[0].var()) == pytest.approx(gain**2 / COLUMNS, rel=0.05)
    assert abs(float(numbers[0].mean())) < 0.01 * gain / COLUMNS**0.5


def test_a_target_of_some_rows_leaves_the_others_alone(device: torch.device) -> None:
    whole = _fp8(device)
    whole.codes.fill_(1.0)
    packed, scales, want = _as_fp4(_weight())

    Fp8Target(whole.codes[128:], whole.scales[1:]).put_fp4(packed[128:], scales[128:])

    assert (whole.codes[:128].float() == 1.0).all()
    assert (whole.scales[0] == 0.0).all()
    assert_same_bits(_numbers(whole)[0][128:], want[128:])
