"""Hyper-connection layers."""

import weakref

import pytest
import torch

from jit_kernels.hyper_connection import mhc_head, mhc_post, mhc_post_pre_norm
from layers.blocks.hyper_connection import BlockResult, HyperConnection, HyperHead, Streams
from layers.blocks.norm import RmsNorm
from tests.testing.compare import assert_same_bits

CPU = torch.device("cpu")
WIDTH = 42
STREAMS = Streams(count=4, width=WIDTH, iterations=20, norm_eps=1e-6, hc_eps=1e-6)


def parts(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shares = torch.rand(tokens, 5, 4)
    return torch.randn(tokens, WIDTH), torch.randn(tokens, 4, WIDTH), shares


def test_the_connection_runs_its_weights_with_the_constants_of_its_streams() -> None:
    connection = HyperConnection(STREAMS, name="hc_attn", device=CPU)
    norm = RmsNorm(WIDTH, eps=1e-6, name="attn_norm", device=CPU)
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
        connection = HyperConnection(STREAMS, name="hc_attn", device=CPU)
        head = HyperHead(STREAMS, name="hc_head", device=CPU)
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
    head = HyperHead(STREAMS, name="hc_head", device=CPU)
    named = dict(head.named_weights())
    for weight in named.values():
        weight.normal_()
    streams = torch.randn(3, 4, WIDTH)

    fn, base, scale = (named[f"hc_head_{part}"] for part in ("fn", "base", "scale"))
    want = mhc_head(streams, fn, base, scale, norm_eps=1e-6, hc_eps=1e-6)
    assert_same_bits(head(streams), want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_tokens_with_a_nan_or_an_infinity_are_not_finite(dtype: torch.dtype) -> None:
    y, streams, shares = parts(9)
    y, streams = y.to(dtype), streams.to(dtype)
    streams[0, 3, -1], streams[1, 0, 5], streams[2, 2, 0] = torch.inf, -torch.inf, torch.nan
    streams[3, 1, :2] = torch.tensor([torch.nan, torch.inf])
    y[4, 7], y[5, -1], shares[6, 4, 3] = torch.nan, torch.inf, torch.nan
    streams[7] = torch.finfo(dtype).max
    made = BlockResult(y, streams, shares)

    assert made.finite().tolist() == [False] * 7 + [True] * 2
    assert made.take()[1] is streams


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_on_the_gpu_one_broken_number_is_found(dtype: torch.dtype, value: float) -> None:
    tokens = 67
    for at in (0, 1, 2047, 4095):
        streams = torch.randn(tokens, 4, 4096, device="cuda").to(dtype)
        y, shares = streams[:, 0].clone(), torch.rand(tokens, 5, 4, device="cuda")
        streams[3, 2, at] = y[66, at] = value
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.max_memory_allocated()
        torch.cuda.set_sync_debug_mode("error")
        try:
            finite = BlockResult(y, streams, shares).finite()
        finally:
            torch.cuda.set_sync_debug_mode("default")

        assert torch.cuda.max_memory_allocated() - before < streams.nbytes // 8
        assert (~finite).nonzero()[:, 0].tolist() == [3, 66]
