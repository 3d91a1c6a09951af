"""The norm layers."""

import torch

from layers.blocks.norm import LayerNorm, RmsNorm
from tests.testing.compare import Bounds, assert_close, assert_same_bits

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


def test_a_layer_norm_takes_the_mean_away_and_adds_a_bias() -> None:
    norm = LayerNorm(128, eps=1e-6, name="k_norm", device=CPU)
    weights = dict(norm.named_weights("indexer."))
    for weight in weights.values():
        weight.copy_(torch.randn(128))
    x = torch.randn(5, 128) + 3.0

    got = norm(x)

    centred = x.double() - x.double().mean(1, keepdim=True)
    want = centred / (centred.square().mean(1, keepdim=True) + 1e-6).sqrt()
    want = want * weights["indexer.k_norm.weight"] + weights["indexer.k_norm.bias"]
    assert_close(got, want.float(), Bounds(atol=1e-5))
    for row in range(5):
        assert_same_bits(norm(x[row : row + 1])[0], got[row])
