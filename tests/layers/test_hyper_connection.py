"""Hyper-connection layers."""

import torch

from jit_kernels.hyper_connection import mhc_head, mhc_post, mhc_post_pre_norm
from layers.hyper_connection import BlockResult, HyperConnection, HyperHead
from layers.norm import RmsNorm
from tests.testing.compare import assert_same_bits
from tests.testing.tiny_model import CONFIG

CPU = torch.device("cpu")
WIDTH = CONFIG.hidden_size


def result(tokens: int) -> BlockResult:
    shares = torch.rand(tokens, 5, 4)
    return BlockResult(torch.randn(tokens, WIDTH), torch.randn(tokens, 4, WIDTH), shares)


def test_the_connection_runs_its_weights_with_the_constants_of_the_config() -> None:
    connection = HyperConnection(CONFIG, name="hc_attn", device=CPU)
    norm = RmsNorm(WIDTH, eps=CONFIG.rms_norm_eps, name="attn_norm", device=CPU)
    named = dict(connection.named_weights("layers.1."))
    for weight in (*named.values(), norm.weight):
        weight.normal_()
    before = result(3)

    x, streams, shares = connection.pre_norm(before, norm)

    fn, base, scale = (named[f"layers.1.hc_attn_{part}"] for part in ("fn", "base", "scale"))
    want = mhc_post_pre_norm(
        *before,
        fn,
        base,
        scale,
        norm.weight,
        iterations=20,
        norm_eps=1e-6,
        hc_eps=1e-6,
    )
    for have, goal in zip((streams, x, shares), want, strict=True):
        assert_same_bits(have, goal)


def test_what_a_block_made_of_some_tokens_is_mixed_back_as_that_of_all() -> None:
    made, tokens = result(5), torch.tensor([4, 1])

    assert_same_bits(made.mixed(), mhc_post(*made))
    assert_same_bits(made.of(tokens).mixed(), made.mixed()[tokens])


def test_the_head_runs_its_weights() -> None:
    head = HyperHead(CONFIG, name="hc_head", device=CPU)
    named = dict(head.named_weights())
    for weight in named.values():
        weight.normal_()
    streams = torch.randn(3, 4, WIDTH)

    fn, base, scale = (named[f"hc_head_{part}"] for part in ("fn", "base", "scale"))
    want = mhc_head(streams, fn, base, scale, norm_eps=1e-6, hc_eps=1e-6)
    assert_same_bits(head(streams), want)
