"""Hyper-connection layers."""

import weakref

import pytest
import torch

from jit_kernels.hyper_connection import mhc_head, mhc_post, mhc_post_pre_norm
from layers.hyper_connection import BlockResult, HyperConnection, HyperHead
from layers.norm import RmsNorm
from tests.testing.compare import assert_same_bits
from tests.testing.tiny_model import CONFIG

CPU = torch.device("cpu")
WIDTH = CONFIG.hidden_size


def parts(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shares = torch.rand(tokens, 5, 4)
    return torch.randn(tokens, WIDTH), torch.randn(tokens, 4, WIDTH), shares


def test_the_connection_runs_its_weights_with_the_constants_of_the_config() -> None:
    connection = HyperConnection(CONFIG, name="hc_attn", device=CPU)
    norm = RmsNorm(WIDTH, eps=CONFIG.rms_norm_eps, name="attn_norm", device=CPU)
    named = dict(connection.named_weights("layers.1."))
    for weight in (*named.values(), norm.weight):
        weight.normal_()
    before = parts(3)

    x, streams, shares = connection.pre_norm(BlockResult(*before), norm)

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


@pytest.mark.parametrize("inference", [True, False])
def test_writes_to_fn_are_counted_wherever_it_is_made(inference: bool) -> None:
    with torch.inference_mode(inference):
        connection = HyperConnection(CONFIG, name="hc_attn", device=CPU)
        head = HyperHead(CONFIG, name="hc_head", device=CPU)
        named = dict(connection.named_weights("")) | dict(head.named_weights())

        for fn in (named["hc_attn_fn"], named["hc_head_fn"]):
            before = fn._version
            fn.normal_()
            assert fn._version > before


def test_what_a_block_made_of_some_tokens_is_mixed_back_as_that_of_all() -> None:
    made, tokens = parts(5), torch.tensor([4, 1])

    whole = BlockResult(*made).mixed()

    assert_same_bits(whole, mhc_post(*made))
    assert_same_bits(BlockResult(*made).of(tokens).mixed(), whole[tokens])


def test_a_result_that_was_mixed_keeps_nothing() -> None:
    y, streams, shares = parts(2)
    gone = weakref.ref(streams)
    made = BlockResult(y, streams, shares)
    del streams

    made.mixed()

    assert gone() is None
    with pytest.raises(AssertionError, match="mixed once"):
        made.mixed()


def test_the_head_runs_its_weights() -> None:
    head = HyperHead(CONFIG, name="hc_head", device=CPU)
    named = dict(head.named_weights())
    for weight in named.values():
        weight.normal_()
    streams = torch.randn(3, 4, WIDTH)

    fn, base, scale = (named[f"hc_head_{part}"] for part in ("fn", "base", "scale"))
    want = mhc_head(streams, fn, base, scale, norm_eps=1e-6, hc_eps=1e-6)
    assert_same_bits(head(streams), want)
