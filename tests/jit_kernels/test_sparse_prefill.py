"""Attention over a workspace, against the formula."""

import pytest
import torch
from torch import Tensor

from jit_kernels.checks import ShapeError
from jit_kernels.sparse_prefill import sparse_prefill
from tests.testing.compare import Bounds, assert_close, assert_same_bits

SCALE = 512**-0.5


def formula(q: Tensor, keys: Tensor, sink: Tensor) -> Tensor:
    """Return the attention of one token [H, 512] over keys [K, 512], in float64."""
    logits = SCALE * q.double() @ keys.double().T
    p = torch.cat((logits, sink.double().unsqueeze(1)), 1).softmax(1)[:, :-1]
    return (p @ keys.double()).bfloat16()


def test_attention_equals_the_formula(device: torch.device) -> None:
    q, sink = torch.randn(4, 5, 512).bfloat16(), torch.randn(5)
    keys = torch.randn(60, 512).bfloat16()
    index = torch.randint(-1, 60, (4, 128), dtype=torch.int32)
    lengths = torch.tensor([128, 0, 1, 100], dtype=torch.int32)

    whole = sparse_prefill(q, keys, index, sink=sink, scale=SCALE)
    part = sparse_prefill(q, keys, index, sink=sink, scale=SCALE, lengths=lengths)

    bounds = Bounds(atol=1e-2, rtol=2e-2, rms=1e-2)
    for token, length in enumerate(lengths.tolist()):
        for got, count in ((whole, 128), (part, length)):
            named = index[token, :count]
            mine = keys[named[named >= 0].to(torch.int64)]
            assert_close(got[token], formula(q[token], mine, sink), bounds)


def test_a_token_without_keys_gives_zeros(device: torch.device) -> None:
    q, keys = torch.randn(2, 3, 512).bfloat16(), torch.full((4, 512), torch.nan).bfloat16()
    index = torch.full((2, 128), -1, dtype=torch.int32)

    got = sparse_prefill(q, keys, index, sink=torch.randn(3), scale=SCALE)

    assert_same_bits(got.abs(), torch.zeros_like(q))


def test_shapes_that_do_not_fit_are_refused(device: torch.device) -> None:
    q, keys, sink = (
        torch.zeros(2, 3, 512).bfloat16(),
        torch.zeros(4, 512).bfloat16(),
        torch.zeros(3),
    )
    index = torch.zeros((2, 128), dtype=torch.int32)

    def refused(why: str, keys: Tensor = keys, index: Tensor = index) -> None:
        with pytest.raises(ShapeError, match=why):
            sparse_prefill(q, keys, index, sink=sink, scale=SCALE)

    refused("index has 64 columns, expected a multiple of 128", index=index[:, :64])
    refused("index is torch.int64", index=index.to(torch.int64))
    refused("keys is torch.float32", keys=keys.float())
    refused("must be contiguous", keys=keys[::2])
