"""Hyper-connection layers."""

import torch

from jit_kernels.hyper_connection import mhc_head, mhc_post, mhc_pre
from layers.hyper_connection import HyperConnection, HyperHead
from tests.testing.compare import assert_same_bits
from tests.testing.tiny_model import CONFIG

CPU = torch.device("cpu")


def test_the_connection_runs_its_weights_with_the_constants_of_the_config() -> None:
    connection = HyperConnection(CONFIG, name="hc_attn", device=CPU)
    named = dict(connection.named_weights("layers.1."))
    for weight in named.values():
        weight.normal_()
    streams, y = torch.randn(3, 4, CONFIG.hidden_size), torch.randn(3, CONFIG.hidden_size)

    mixed, post, mixing = connection.pre(streams)

    fn, base, scale = (named[f"layers.1.hc_attn_{part}"] for part in ("fn", "base", "scale"))
    want = mhc_pre(streams, fn, base, scale, iterations=20, norm_eps=1e-6, hc_eps=1e-6)
    for have, goal in zip((mixed, post, mixing), want, strict=True):
        assert_same_bits(have, goal)
    assert_same_bits(connection.post(y, streams, post, mixing), mhc_post(y, streams, post, mixing))


def test_the_head_runs_its_weights() -> None:
    head = HyperHead(CONFIG, name="hc_head", device=CPU)
    named = dict(head.named_weights())
    for weight in named.values():
        weight.normal_()
    streams = torch.randn(3, 4, CONFIG.hidden_size)

    fn, base, scale = (named[f"hc_head_{part}"] for part in ("fn", "base", "scale"))
    want = mhc_head(streams, fn, base, scale, norm_eps=1e-6, hc_eps=1e-6)
    assert_same_bits(head(streams), want)
