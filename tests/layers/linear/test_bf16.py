"""Products over bfloat16 weights."""

import torch

from layers.blocks.norm import RmsNorm
from layers.linear.bf16 import Bf16Linear
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.tiny_model import plain_weights

SUMMED = Bounds(atol=1e-3, rtol=1e-5)


def test_products_are_exact_but_for_their_sum(device: torch.device) -> None:
    linear = Bf16Linear(96, {"a": 3, "b": 64}, device=device)
    views = plain_weights(linear.named_weights("x."))
    for view in views.values():
        view.normal_()
    x = torch.randn(4, 96).bfloat16()

    got = linear(linear.rows(x))

    want = x.float() @ torch.cat([view.float() for view in views.values()]).T
    assert list(views) == ["x.a.weight", "x.b.weight"]
    assert got.dtype == torch.float32
    assert_close(got, want, SUMMED)


def test_rows_are_normed_and_gated_in_bfloat16(device: torch.device) -> None:
    linear = Bf16Linear(64, {"a": 8}, device=device)
    norm = RmsNorm(64, eps=1e-5, name="norm", device=device)
    norm.weight.normal_()
    x, hidden = torch.randn(4, 64), 3 * torch.randn(4, 128)

    normed, gated = linear.rows(x, norm).x, linear.gated(hidden, 2.5).x

    assert_same_bits(normed, norm(x, out_dtype=torch.bfloat16))
    gate, up = hidden.clamp(max=2.5)[:, :64], hidden.clamp(-2.5, 2.5)[:, 64:]
    assert gated.dtype == torch.bfloat16
    assert_close(gated.float(), torch.nn.functional.silu(gate) * up, Bounds(rtol=2**-8))


def test_invariant_layers_give_a_row_the_same_bits_in_any_company(device: torch.device) -> None:
    # What a library does depends on sizes: on a device, those of the true network.
    width, columns = (4096, 3136) if device.type == "cuda" else (256, 832)
    linear = Bf16Linear(width, {"a": columns}, device=device, invariant=True)
    linear.weight.normal_()
    x = torch.randn(300, width).bfloat16()

    whole = linear(linear.rows(x))

    for first, last in ((0, 1), (7, 16), (33, 97), (100, 300), (299, 300)):
        got = linear(linear.rows(x[first:last]))
        assert_same_bits(got, whole[first:last], what=f"row {first}")
