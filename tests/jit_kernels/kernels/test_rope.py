"""Rotation in place on the device."""

from types import ModuleType

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.rope import cuda_backend, reference, triton_backend
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import Bounds, assert_close, assert_same_bits

SHAPES = with_large(
    [(1, 1, 2, 2), (5, 3, 11, 6), (0, 2, 8, 4), (20, 2, 96, 64)],
    [(257, 64, 512, 64), (33, 128, 512, 64), (300, 1, 128, 64), (7, 6, 72, 24)],
)
BACKENDS = pytest.mark.parametrize("backend", with_large([triton_backend], [cuda_backend]))


@BACKENDS
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "heads", "width", "turned"), SHAPES)
def test_pairs_turn_as_in_the_reference(
    backend: ModuleType,
    tokens: int,
    heads: int,
    width: int,
    turned: int,
    dtype: torch.dtype,
    inverse: bool,
) -> None:
    x, rotation = torch.randn(tokens, heads, width).to(dtype), rotations(tokens, turned)
    want = reference.rope(x.clone(), rotation, inverse)

    got = backend.rope(x, rotation, inverse)

    assert got is x
    step = 1e-5 if dtype == torch.float32 else 2.0**-7
    assert_close(got, want, Bounds(atol=1e-6, rtol=step))


@BACKENDS
def test_a_view_with_gaps_is_refused(backend: ModuleType) -> None:
    with pytest.raises(ShapeError, match="not contiguous"):
        backend.rope(torch.zeros(2, 2, 8)[:, :1], rotations(2, 4), False)


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
