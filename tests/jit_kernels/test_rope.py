"""Rotation of interleaved channel pairs."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.rope import rope, rotations
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.rows import assert_rows_independent

pytestmark = pytest.mark.usefixtures("device")


def rotation(angle: torch.Tensor) -> torch.Tensor:
    """Return [T, 2, R] for angles [T, R / 2]."""
    cos, sin = angle.cos().repeat_interleave(2, 1), angle.sin().repeat_interleave(2, 1)
    sign = torch.tensor([-1.0, 1.0]).repeat(angle.shape[1])
    return torch.stack((cos, sin * sign), 1)


@pytest.mark.parametrize(("tokens", "heads", "width", "rotated"), [(1, 1, 2, 2), (5, 3, 11, 6)])
def test_pairs_turn_as_complex_numbers(tokens: int, heads: int, width: int, rotated: int) -> None:
    x, angle = torch.randn(tokens, heads, width), torch.randn(tokens, rotated // 2) * 9
    plain = x.clone()

    got = rope(x, rotation(angle))

    pairs = torch.view_as_complex(
        plain[..., width - rotated :].double().reshape(tokens, heads, -1, 2)
    )
    turned = torch.view_as_real(
        pairs * torch.polar(torch.ones(()).double(), angle.double())[:, None]
    )
    assert got is x
    assert_close(got[..., width - rotated :], turned.flatten(2).float(), Bounds(atol=1e-5))
    assert_same_bits(got[..., : width - rotated], plain[..., : width - rotated])


def test_the_inverse_turns_back() -> None:
    x, turn = torch.randn(6, 2, 10), rotation(torch.randn(6, 4))

    got = rope(rope(x.clone(), turn), turn, inverse=True)

    assert_close(got, x, Bounds(atol=1e-6))


def test_bfloat16_is_turned_in_float32_and_rounded_once() -> None:
    x, turn = torch.randn(3, 2, 8).bfloat16(), rotation(torch.randn(3, 4))

    assert_same_bits(rope(x.clone(), turn), rope(x.float(), turn).bfloat16())


def test_a_row_has_the_same_bits_in_any_company() -> None:
    assert_rows_independent(rope, [torch.randn(40, 3, 21), rotation(torch.randn(40, 5))])


def test_rotations_of_other_tokens_are_refused() -> None:
    with pytest.raises(ShapeError, match="rotation has shape"):
        rope(torch.zeros(2, 1, 4), torch.zeros(3, 2, 4))


def test_a_rotation_holds_cosines_then_sines_with_the_sign_of_their_place() -> None:
    position, angle = torch.tensor([0, 5, 700]), torch.tensor([0.7, 0.01])

    got = rotations(position, angle.repeat_interleave(2))

    turned = position.float()[:, None] * angle
    assert_close(got, rotation(turned), Bounds(atol=1e-6))


def test_positions_that_are_no_integers_are_refused() -> None:
    with pytest.raises(ShapeError, match="positions"):
        rotations(torch.zeros(2), torch.zeros(4))
