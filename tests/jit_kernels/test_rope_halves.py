"""Rotation of channels with those half a head away."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.rope_halves import rope_halves
from jit_kernels.rope_halves.reference import rope_halves as in_torch
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.rows import assert_rows_independent

pytestmark = pytest.mark.usefixtures("device")


def rotation(angle: torch.Tensor) -> torch.Tensor:
    """Return [T, 2, D / 2] for angles [T, D / 2]."""
    return torch.stack((angle.cos(), angle.sin()), 1)


@pytest.mark.parametrize(("tokens", "heads", "width"), [(1, 1, 2), (5, 3, 22), (4, 9, 64)])
def test_halves_turn_as_complex_numbers(tokens: int, heads: int, width: int) -> None:
    x, angle = torch.randn(tokens, heads, width), torch.randn(tokens, width // 2) * 9
    low, high = x.double().chunk(2, -1)
    turned = (
        torch.complex(low, high) * torch.polar(torch.ones(()).double(), angle.double())[:, None]
    )

    got = rope_halves(x, rotation(angle))

    assert got is x
    assert_close(x, torch.cat((turned.real, turned.imag), -1).float(), Bounds(atol=1e-5))


def test_heads_of_wider_rows_turn_alone() -> None:
    wide, turn = torch.randn(6, 5, 8), rotation(torch.randn(6, 4))
    before = wide.clone()

    rope_halves(wide[:, :3], turn)

    assert_close(wide[:, :3], in_torch(before[:, :3].contiguous(), turn), Bounds(atol=1e-6))
    assert_same_bits(wide[:, 3:], before[:, 3:])


def test_a_row_has_the_same_bits_in_any_company() -> None:
    assert_rows_independent(rope_halves, [torch.randn(40, 3, 22), rotation(torch.randn(40, 11))])


@pytest.mark.parametrize(
    ("x", "turn"),
    [
        (torch.zeros(2, 1, 4), torch.zeros(3, 2, 2)),
        (torch.zeros(2, 1, 3), torch.zeros(2, 2, 1)),
        (torch.zeros(2, 4, 2).transpose(1, 2), torch.zeros(2, 2, 2)),
        (torch.zeros(2, 1, 4).half(), torch.zeros(2, 2, 2)),
    ],
    ids=["rotations of other tokens", "an odd head", "channels apart", "halves"],
)
def test_what_does_not_fit_is_refused(x: torch.Tensor, turn: torch.Tensor) -> None:
    with pytest.raises(ShapeError):
        rope_halves(x, turn)
