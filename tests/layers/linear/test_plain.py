"""Stacked and grouped linear layers."""

import torch

from layers.linear.plain import GroupedLinear, Linear
from tests.testing.compare import Bounds, assert_close, assert_same_bits

CPU = torch.device("cpu")


def test_named_parts_are_views_of_one_weight() -> None:
    linear = Linear(5, {"a": 2, "b.c": 3}, dtype=torch.float32, device=CPU)

    named = dict(linear.named_weights("x."))
    named["x.a.weight"].fill_(1.0)
    named["x.b.c.weight"].fill_(2.0)

    assert linear.weight[:, 0].tolist() == [1, 1, 2, 2, 2]


def test_split_gives_each_part_its_product() -> None:
    linear = Linear(5, {"a": 2, "b": 3}, dtype=torch.bfloat16, device=CPU)
    linear.weight.normal_()
    x = torch.randn(4, 5).bfloat16()

    a, b = linear.split(x, out_dtype=torch.float32)

    want = x.float() @ linear.weight.float().T
    assert_close(a, want[:, :2], Bounds(atol=1e-5))
    assert_close(b, want[:, 2:], Bounds(atol=1e-5))
    assert_same_bits(linear(x), torch.cat((a, b), 1).bfloat16())


def test_groups_read_their_own_channels() -> None:
    grouped = GroupedLinear(3, 2, 4, name="wo_a", dtype=torch.float32, device=CPU)
    grouped.weight.normal_()
    x = torch.randn(5, 3, 4)

    got = grouped(x)

    want = torch.einsum("tgk,gnk->tgn", x, grouped.weight).flatten(1)
    assert_close(got, want, Bounds(atol=1e-5))


def test_the_grouped_weight_is_stored_group_after_group() -> None:
    grouped = GroupedLinear(3, 2, 4, name="wo_a", dtype=torch.float32, device=CPU)

    ((name, view),) = grouped.named_weights("attn.")
    view.copy_(torch.arange(6.0).unsqueeze(1).expand(6, 4))

    assert name == "attn.wo_a.weight"
    assert grouped.weight[:, :, 0].tolist() == [[0, 1], [2, 3], [4, 5]]
