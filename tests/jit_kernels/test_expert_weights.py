"""Forms of expert weights: packed fp4 keeps every number, fp8 most."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.expert_weights import Fp4Experts, Fp8Experts, expand_fp4, expanded, pack_fp4
from jit_kernels.expert_weights.reference import dense_expert, dense_fp4, dense_fp8
from layers.weights.quant import dequantise_fp4, quantise_fp4
from tests.jit_kernels.kernels.experts import fp4_experts, fp8_experts
from tests.testing.compare import assert_same_bits


def test_packing_keeps_every_number_of_a_published_weight() -> None:
    dense = torch.randn(6, 96)
    packed, scales = quantise_fp4(dense)
    want = torch.empty(6, 96)
    dequantise_fp4(packed, scales, want)

    words, bytes_ = pack_fp4(packed[None], scales[None])

    assert (words.dtype, bytes_.dtype) == (torch.int16, torch.uint8)
    assert_same_bits(dense_fp4(words, bytes_)[0] + 0.0, want + 0.0)


def test_a_shifted_word_is_a_number_of_bfloat16() -> None:
    """What the kernel relies on: bits 15 and 8..6 after a shift by 0, 3, 6 or -3."""
    packed = torch.randint(0, 256, (1, 16), dtype=torch.uint8)

    words, scales = pack_fp4(packed, torch.full((1, 1), 127, dtype=torch.uint8))

    wide = words.to(torch.int32) & 0xFFFF
    moves = [(wide, wide), (wide << 3, wide << 3), (wide << 1, wide << 6), (wide << 2, wide >> 3)]
    parts = [(signs & 0x8000) | (sizes & 0x01C0) for signs, sizes in moves]
    halves = torch.stack(parts, 1).flatten(1)
    as_floats = (halves << 16).view(torch.float32) * 2.0**126
    assert_same_bits(as_floats + 0.0, dense_fp4(words, scales) + 0.0)


def test_a_scale_above_two_cannot_be_packed() -> None:
    packed = torch.zeros(1, 16, dtype=torch.uint8)

    pack_fp4(packed, torch.full((1, 1), 128, dtype=torch.uint8))
    with pytest.raises(ShapeError, match=r"fp4 scale of 2\^2"):
        pack_fp4(packed, torch.full((1, 1), 129, dtype=torch.uint8))


def test_fp4_experts_become_fp8_experts_of_the_same_numbers() -> None:
    parts = fp4_experts(2, 256, 128)

    fp8, lost = expanded(parts)
    again, _ = expanded(parts, fp8)

    assert again is fp8
    assert not lost.any()
    for expert in range(2):
        for got, want in zip(dense_expert(fp8, expert), dense_expert(parts, expert), strict=True):
            assert_same_bits(got + 0.0, want + 0.0)


def test_numbers_below_the_range_of_a_block_are_rounded_and_counted() -> None:
    packed = torch.full((1, 128, 64), 0x11, dtype=torch.uint8)
    scales = torch.full((1, 128, 4), 120, dtype=torch.uint8)
    scales[0, 3], scales[0, 4] = 106, 105
    codes = torch.empty(1, 128, 128, dtype=torch.float8_e4m3fn)
    blocks = torch.empty(1, 1, 1)

    lost = expand_fp4(*pack_fp4(packed, scales), codes, blocks)

    numbers = dense_fp8(codes, blocks)[0]
    assert lost.tolist() == [128]
    assert (numbers[3] == 2.0 ** (105 - 127)).all()
    assert (numbers[4] == 0.0).all()


def test_sizes_that_do_not_fit_are_refused() -> None:
    fp8, fp4 = fp8_experts(1, 128, 128), fp4_experts(1, 128, 128)

    with pytest.raises(ShapeError, match="gate_up_scales has shape"):
        Fp8Experts(fp8.gate_up, fp8.down_scales, fp8.down, fp8.down_scales)
    with pytest.raises(ShapeError, match="multiple of 128"):
        Fp4Experts(fp4.gate_up, fp4.gate_up_scales, fp4.down[..., :8], fp4.down_scales)
    with pytest.raises(ShapeError, match="multiple of 32"):
        pack_fp4(torch.zeros(1, 17, dtype=torch.uint8), torch.zeros(1, 1, dtype=torch.uint8))
    codes = torch.empty(1, 64, 128, dtype=torch.float8_e4m3fn)
    with pytest.raises(ShapeError, match="multiples of 128"):
        expand_fp4(fp4.down[:, :64], fp4.down_scales[:, :64], codes, torch.empty(1, 1, 1))


@pytest.mark.parametrize("chosen", [0, 6])
def test_new_fp8_experts_are_zeros_that_are_noted_where_they_are_sorted(
    chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[tuple[object, ...]] = []

    def note(*given: object, above: int) -> None:
        noted.append((*given, above))

    monkeypatch.setattr("jit_kernels.expert_weights.forms.note", note)

    experts = Fp8Experts.zeros(3, 256, 128, torch.device("cpu"), chosen=chosen, streamed=40)

    assert experts.sizes == (3, 256, 128)
    assert experts.gate_up_scales.shape == (3, 2, 2)
    for part in (experts.gate_up, experts.gate_up_scales, experts.down, experts.down_scales):
        assert not part.float().any()
    want = [("grouped_moe", (3, 256, 128, 6), experts.down, 40)]
    assert noted == (want if chosen else [])


def test_new_fp4_experts_are_zeros() -> None:
    experts = Fp4Experts.zeros(3, 256, 128, torch.device("cpu"))

    assert experts.sizes == (3, 256, 128)
    assert experts.gate_up.shape == (3, 256, 64)
    for part in (experts.gate_up, experts.gate_up_scales, experts.down, experts.down_scales):
        assert not part.any()
