"""Linear layers over plain numbers."""

import pytest
import torch
from torch import Tensor

from jit_kernels.rope import rope
from layers.blocks.norm import RmsNorm
from layers.linear.plain import PlainGroupedLinear, PlainLinear
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.tiny_model import plain_weights

CPU = torch.device("cpu")


def no_turn(tokens: int, channels: int) -> Tensor:
    """Return rotations [T, 2, R] that turn nothing."""
    return torch.stack((torch.ones(tokens, channels), torch.zeros(tokens, channels)), 1)


def test_named_parts_are_views_of_one_weight() -> None:
    linear = PlainLinear(5, {"a": 2, "b.c": 3}, dtype=torch.float32, device=CPU)

    named = plain_weights(linear.named_weights("x."))
    named["x.a.weight"].fill_(1.0)
    named["x.b.c.weight"].fill_(2.0)

    assert linear.weight[:, 0].tolist() == [1, 1, 2, 2, 2]


@pytest.mark.parametrize("weight_dtype", [None, torch.float32])
def test_parts_get_their_products_one_after_another_in_float32(
    weight_dtype: torch.dtype | None,
) -> None:
    linear = PlainLinear(
        5, {"a": 2, "b": 3}, dtype=torch.bfloat16, device=CPU, weight_dtype=weight_dtype
    )
    linear.weight.normal_()
    x = torch.randn(4, 5).bfloat16()

    got = linear(linear.rows(x))

    assert linear.weight.dtype == (weight_dtype or torch.bfloat16)
    assert got.dtype == torch.float32
    assert_close(got, x.float() @ linear.weight.float().T, Bounds(atol=1e-5))


def test_rows_are_normed_and_gated_in_the_dtype_of_the_layer() -> None:
    linear = PlainLinear(6, {"a": 2}, dtype=torch.bfloat16, device=CPU)
    norm = RmsNorm(6, eps=1e-5, name="norm", device=CPU)
    norm.weight.normal_()
    x, hidden = torch.randn(4, 6), 3 * torch.randn(4, 12)

    normed, gated = linear.rows(x, norm).x, linear.gated(hidden, 2.5).x

    assert_same_bits(normed, norm(x, out_dtype=torch.bfloat16))
    gate, up = hidden.clamp(max=2.5)[:, :6], hidden.clamp(-2.5, 2.5)[:, 6:]
    assert gated.dtype == torch.bfloat16
    assert_close(gated.float(), torch.nn.functional.silu(gate) * up, Bounds(rtol=2**-8))


def test_groups_read_their_own_channels() -> None:
    grouped = PlainGroupedLinear(3, 2, 4, name="wo_a", dtype=torch.float32, device=CPU)
    grouped.weight.normal_()
    heads = torch.randn(5, 6, 2)

    got = grouped(heads.clone(), no_turn(5, 2))

    want = torch.einsum("tgk,gnk->tgn", heads.view(5, 3, 4), grouped.weight).flatten(1)
    assert_close(got, want, Bounds(atol=1e-5))


def test_heads_are_turned_back_before_they_are_multiplied() -> None:
    grouped = PlainGroupedLinear(2, 3, 8, name="wo_a", dtype=torch.float32, device=CPU)
    grouped.weight.normal_()
    heads, angle = torch.randn(5, 2, 8), torch.randn(5, 2).repeat_interleave(2, 1)
    rotation = torch.stack((angle.cos(), angle.sin() * torch.tensor([-1.0, 1.0] * 2)), 1)

    turned = rope(heads.clone(), rotation)

    assert not torch.equal(turned, heads)
    plain = grouped(heads.clone(), no_turn(5, 4))
    assert_close(grouped(turned, rotation), plain, Bounds(atol=1e-5))


def test_the_grouped_weight_is_stored_group_after_group() -> None:
    grouped = PlainGroupedLinear(3, 2, 4, name="wo_a", dtype=torch.float32, device=CPU)

    ((name, view),) = plain_weights(grouped.named_weights("attn.")).items()
    view.copy_(torch.arange(6.0).unsqueeze(1).expand(6, 4))

    assert name == "attn.wo_a.weight"
    assert grouped.weight[:, :, 0].tolist() == [[0, 1], [2, 3], [4, 5]]
