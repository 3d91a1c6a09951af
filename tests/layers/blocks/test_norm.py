"""The norm layer."""

import torch

from layers.blocks.norm import RmsNorm
from tests.testing.compare import Bounds, assert_close

CPU = torch.device("cpu")


def test_the_weight_scales_the_normed_row() -> None:
    norm = RmsNorm(6, eps=1e-6, name="attn_norm", device=CPU)
    ((name, weight),) = norm.named_weights("layers.3.")
    weight.copy_(torch.randn(6))
    x = torch.randn(4, 6).bfloat16()

    got = norm(x, out_dtype=torch.float32)

    wide = x.float()
    want = weight * wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    assert name == "layers.3.attn_norm.weight"
    assert weight.dtype == torch.float32
    assert_close(got, want, Bounds(atol=1e-6))
    assert norm(x).dtype == torch.bfloat16
