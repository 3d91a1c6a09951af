"""Streams mixed into a block and back, against the formula written out."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.hyper_connection import mhc_head, mhc_post, mhc_pre, mhc_pre_norm
from jit_kernels.rms_norm import rms_norm
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.rows import assert_rows_independent

pytestmark = pytest.mark.usefixtures("device")

EPS, HC_EPS = 1e-6, 1e-4


def weights(count: int, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return fn, base and scale."""
    rows = (2 + count) * count
    return torch.randn(rows, count * width) * 0.2, torch.randn(rows), torch.randn(3)


def formula(
    x: torch.Tensor, fn: torch.Tensor, base: torch.Tensor, scale: torch.Tensor, iterations: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return input, post and mixing of one token [N, d], in float64."""
    count = x.shape[0]
    flat = x.flatten()
    z = fn @ (flat / (flat.pow(2).mean() + EPS).sqrt())
    pre = torch.sigmoid(z[:count] * scale[0] + base[:count]) + HC_EPS
    post = 2 * torch.sigmoid(z[count : 2 * count] * scale[1] + base[count : 2 * count])
    a = (z[2 * count :] * scale[2] + base[2 * count :]).view(count, count).softmax(-1) + HC_EPS
    a = a / (a.sum(0, keepdim=True) + HC_EPS)
    for _ in range(iterations - 1):
        a = a / (a.sum(1, keepdim=True) + HC_EPS)
        a = a / (a.sum(0, keepdim=True) + HC_EPS)
    return pre @ x, post, a


@pytest.mark.parametrize(("tokens", "count", "width"), [(1, 4, 5), (2, 4, 33), (21, 3, 8)])
def test_pre_equals_the_formula(tokens: int, count: int, width: int) -> None:
    x, (fn, base, scale) = torch.randn(tokens, count, width), weights(count, width)

    got = mhc_pre(x, fn, base, scale, iterations=20, norm_eps=EPS, hc_eps=HC_EPS)

    doubles = (fn.double(), base.double(), scale.double())
    for t in range(tokens):
        want = formula(x[t].double(), *doubles, iterations=20)
        for have, goal in zip(got, want, strict=True):
            assert_close(have[t], goal.float(), Bounds(atol=2e-5))


def test_the_first_index_of_the_mixing_is_the_old_stream() -> None:
    x, y = torch.randn(3, 4, 6), torch.randn(3, 6)
    post, mixing = torch.rand(3, 4), torch.rand(3, 4, 4)

    got = mhc_post(y, x, post, mixing)

    want = torch.zeros(3, 4, 6)
    for k in range(4):
        want[:, k] = post[:, k, None] * y
        for j in range(4):
            want[:, k] += mixing[:, j, k, None] * x[:, j]
    assert_close(got, want, Bounds(atol=1e-5))


def test_the_head_is_a_gated_sum() -> None:
    x, fn = torch.randn(5, 4, 6), torch.randn(4, 24)
    base, scale = torch.randn(4), torch.randn(1)

    got = mhc_head(x, fn, base, scale, norm_eps=EPS, hc_eps=HC_EPS)

    flat = x.flatten(1)
    z = flat / (flat.pow(2).mean(-1, keepdim=True) + EPS).sqrt() @ fn.T
    pre = torch.sigmoid(z * scale + base) + HC_EPS
    assert_close(got, (pre.unsqueeze(2) * x).sum(1), Bounds(atol=1e-5))
    assert mhc_head(x[:0], fn, base, scale, norm_eps=EPS, hc_eps=HC_EPS).shape == (0, 6)


@pytest.mark.parametrize("width", [3, 40, 96])
def test_a_token_has_the_same_bits_in_any_company(width: int) -> None:
    fn, base, scale = weights(4, width)

    def pre(x: torch.Tensor) -> torch.Tensor:
        parts = mhc_pre(x, fn, base, scale, iterations=20, norm_eps=EPS, hc_eps=HC_EPS)
        return torch.cat([part.flatten(1) for part in parts], 1)

    def head(x: torch.Tensor) -> torch.Tensor:
        return mhc_head(x, fn[:4], base[:4], scale[:1], norm_eps=EPS, hc_eps=HC_EPS)

    x = torch.randn(40, 4, width)
    assert_rows_independent(pre, [x])
    assert_rows_independent(head, [x])
    others = [torch.randn(40, width), x, torch.rand(40, 4), torch.rand(40, 4, 4)]
    assert_rows_independent(mhc_post, others)


def test_streams_keep_their_dtype(device: torch.device) -> None:
    x, (fn, base, scale) = torch.randn(3, 4, 8).bfloat16(), weights(4, 8)

    mixed, post, mixing = mhc_pre(x, fn, base, scale, iterations=3, norm_eps=EPS, hc_eps=HC_EPS)

    assert (mixed.dtype, post.dtype, mixing.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    wide, _, _ = mhc_pre(x.float(), fn, base, scale, iterations=3, norm_eps=EPS, hc_eps=HC_EPS)
    if device.type == "cpu":
        assert_same_bits(mixed, wide.bfloat16())
    assert_close(mixed, wide.bfloat16(), Bounds(rtol=2.0**-7))
    assert mhc_post(mixed, x, post, mixing).dtype == torch.bfloat16


def test_the_norm_can_be_had_at_once() -> None:
    x, (fn, base, scale), gain = torch.randn(6, 4, 8), weights(4, 8), torch.randn(8)

    got = mhc_pre_norm(x, fn, base, scale, gain, iterations=3, norm_eps=EPS, hc_eps=HC_EPS)

    want = mhc_pre(x, fn, base, scale, iterations=3, norm_eps=EPS, hc_eps=HC_EPS)
    assert_close(got[0], rms_norm(want[0], gain, eps=EPS), Bounds(atol=1e-5))
    assert_close(got[1], want[1], Bounds(atol=1e-6))
    assert_close(got[2], want[2], Bounds(atol=1e-6))
    with pytest.raises(ShapeError, match="weight has shape"):
        mhc_pre_norm(x, fn, base, scale, gain[:7], iterations=3, norm_eps=EPS, hc_eps=HC_EPS)


def test_weights_of_another_size_are_refused() -> None:
    fn, base, scale = weights(4, 8)
    with pytest.raises(ShapeError, match="fn has shape"):
        mhc_pre(torch.zeros(1, 4, 7), fn, base, scale, iterations=2, norm_eps=EPS, hc_eps=HC_EPS)
