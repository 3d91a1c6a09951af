"""Frequencies and rotations."""

import math

import pytest
import torch

from layers.blocks.rope import HalfRope, PairRope, frequencies
from layers.models.deepseek_v4.model import angles
from layers.models.rope_scaling import YarnScaling
from tests.testing.compare import Bounds, assert_close
from tests.testing.rows import assert_rows_independent
from tests.testing.tiny_model import CONFIG

YARN = YarnScaling(
    factor=16.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=65536
)


def test_plain_frequencies_are_powers_of_the_base() -> None:
    got = frequencies(8, 10000.0, None)

    assert_close(got, torch.tensor([1.0, 0.1, 0.01, 0.001]), Bounds(rtol=1e-6))


def test_the_released_configuration_interpolates_between_pairs_15_and_25() -> None:
    plain, scaled = frequencies(64, 160000.0, None), frequencies(64, 160000.0, YARN)

    assert torch.equal(scaled[:16], plain[:16])
    assert_close(scaled[25:], plain[25:] / 16, Bounds(rtol=1e-6))
    between = scaled[16:25] / plain[16:25]
    assert (between[1:] < between[:-1]).all()
    assert_close(between[4:5], torch.tensor([0.5 / 16 + 0.5]), Bounds(rtol=1e-5))


def test_a_ramp_without_length_is_a_step() -> None:
    tight = YarnScaling(16.0, 1.0, 1.0, original_max_position_embeddings=50)

    got = frequencies(4, 10000.0, tight)

    assert got.isfinite().all()


@pytest.mark.parametrize("compressed", [False, True])
def test_a_rotation_holds_cosines_and_signed_sines(compressed: bool) -> None:
    rope = angles(CONFIG, torch.device("cpu"))
    positions = torch.tensor([0, 1, 1000])

    got = rope.rotation(positions, compressed=compressed)

    base = CONFIG.compress_rope_theta if compressed else CONFIG.rope_theta
    for t, position in enumerate(positions.tolist()):
        for i in range(CONFIG.qk_rope_head_dim // 2):
            angle = position * base ** (-2 * i / CONFIG.qk_rope_head_dim)
            sin = math.sin(angle)
            want = torch.tensor([[math.cos(angle)] * 2, [-sin, sin]])
            assert_close(got[t, :, 2 * i : 2 * i + 2], want, Bounds(atol=1e-4))


def test_a_rotation_has_the_same_bits_in_any_company() -> None:
    rope = angles(CONFIG, torch.device("cpu"))

    assert_rows_independent(
        lambda positions: rope.rotation(positions, compressed=True), [torch.arange(0, 4000, 57)]
    )


def test_pairs_and_halves_turn_by_the_same_angles() -> None:
    angles, positions = torch.tensor([1.0, 0.1, 0.01]), torch.tensor([0, 5, 900])
    pairs, halves = (
        kind(angles, attention_factor=1.25, device=torch.device("cpu")).rotation(positions)
        for kind in (PairRope, HalfRope)
    )

    assert torch.equal(pairs[:, :, 1::2], halves)
    assert torch.equal(pairs[:, 0, ::2], halves[:, 0])
    assert torch.equal(pairs[:, 1, ::2], -halves[:, 1])
    assert_close(halves.norm(dim=1), torch.full((3, 3), 1.25), Bounds(rtol=1e-5))
