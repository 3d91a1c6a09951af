"""Rotations of positions made on the device."""

import pytest
import torch

from jit_kernels.rope import reference, triton_backend
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import Bounds, assert_close, assert_same_bits


@pytest.mark.parametrize(
    ("tokens", "channels"), with_large([(0, 4), (1, 64), (9, 6)], [(8193, 64), (5, 512)])
)
def test_rotations_are_those_of_the_reference(tokens: int, channels: int) -> None:
    """Far positions take another way in the library of functions than near ones."""
    position = torch.randint(-128, 1 << 20, (2 * tokens,))[::2]
    position[: tokens // 2] %= 300
    angles = torch.exp(torch.arange(channels // 2) * -0.4).repeat_interleave(2)

    got = triton_backend.rotations(position, angles)

    assert_close(got, reference.rotations(position, angles), Bounds(atol=5e-7))


def test_position_0_is_turned_by_nothing() -> None:
    got = triton_backend.rotations(torch.tensor([0]), torch.ones(4))

    want = torch.tensor([[[1.0, 1.0, 1.0, 1.0], [-0.0, 0.0, -0.0, 0.0]]])
    assert_same_bits(got, want)


def rotations(tokens: int, channels: int) -> torch.Tensor:
    """Return [T, 2, R] as the model makes it."""
    angle = torch.randn(tokens, channels // 2) * 9
    cos, sin = angle.cos().repeat_interleave(2, 1), angle.sin().repeat_interleave(2, 1)
    sign = torch.tensor([-1.0, 1.0]).repeat(channels // 2)
    return torch.stack((cos, sin * sign), 1)
