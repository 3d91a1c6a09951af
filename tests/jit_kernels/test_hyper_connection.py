"""Streams mixed into a block and back, against the formula written out."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.hyper_connection import mhc_head, mhc_post, mhc_post_pre_norm
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.rows import assert_rows_independent

pytestmark = pytest.mark.usefixtures("device")

EPS, HC_EPS = 1e-6, 1e-4


def weights(count: int, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return fn, base and scale."""
    rows = (2 + count) * count
    return torch.randn(rows, count * width) * 0.2, torch.randn(rows), torch.randn(3)


def owed(tokens: int, count: int, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a block's result, the streams that it is owed to, and by which shares."""
    shares = torch.rand(tokens, count + 1, count)
    return torch.randn(tokens, width), torch.randn(tokens, count, width), shares


def formula(
    x: torch.Tensor, fn: torch.Tensor, base: torch.Tensor, scale: torch.Tensor, iterations: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return input and shares of one token [N, d], in float64."""
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
    return pre @ x, torch.cat((a, post.unsqueeze(0)))


@pytest.mark.parametrize(
    ("tokens", "count", "width"), [(0, 4, 6), (1, 4, 5), (2, 4, 33), (21, 3, 8)]
)
def test_new_streams_are_mixed_and_normed_by_the_formula(
    tokens: int, count: int, width: int
) -> None:
    y, x, shares = owed(tokens, count, width)
    (fn, base, scale), gain = weights(count, width), torch.randn(width)

    after, mixed, fresh = mhc_post_pre_norm(
        *(y, x, shares, fn, base, scale, gain), iterations=20, norm_eps=EPS, hc_eps=HC_EPS
    )

    assert_close(after, mhc_post(y, x, shares), Bounds(atol=1e-6))
    doubles = (fn.double(), base.double(), scale.double())
    for t in range(tokens):
        want, want_shares = formula(after[t].double(), *doubles, iterations=20)
        factor = (want.square().mean() + EPS).rsqrt()
        # A norm of few channels makes what is small as much larger.
        assert_close(mixed[t], (want * factor * gain).float(), Bounds(atol=1e-4))
        assert_close(fresh[t], want_shares.float(), Bounds(atol=2e-5))


def test_the_first_index_of_the_shares_is_the_old_stream_and_the_last_of_them_the_result() -> None:
    y, x, shares = owed(3, 4, 6)

    got = mhc_post(y, x, shares)

    want = torch.zeros(3, 4, 6)
    for k in range(4):
        want[:, k] = shares[:, 4, k, None] * y
        for j in range(4):
            want[:, k] += shares[:, j, k, None] * x[:, j]
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
    (fn, base, scale), gain = weights(4, width), torch.randn(width)

    def mix(y: torch.Tensor, x: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        parts = mhc_post_pre_norm(
            *(y, x, shares, fn, base, scale, gain), iterations=20, norm_eps=EPS, hc_eps=HC_EPS
        )
        return torch.cat([part.flatten(1) for part in parts], 1)

    def head(x: torch.Tensor) -> torch.Tensor:
        return mhc_head(x, fn[:4], base[:4], scale[:1], norm_eps=EPS, hc_eps=HC_EPS)

    y, x, shares = owed(40, 4, width)
    assert_rows_independent(mix, [y, x, shares])
    assert_rows_independent(mhc_post, [y, x, shares])
    assert_rows_independent(head, [x])


def test_streams_keep_their_dtype(device: torch.device) -> None:
    y, x, shares = owed(3, 4, 8)
    (fn, base, scale), gain = weights(4, 8), torch.randn(8)

    after, mixed, fresh = mhc_post_pre_norm(
        *(y.bfloat16(), x.bfloat16(), shares, fn, base, scale, gain),
        iterations=3,
        norm_eps=EPS,
        hc_eps=HC_EPS,
    )

    half = torch.bfloat16
    assert (after.dtype, mixed.dtype, fresh.dtype) == (half, half, torch.float32)
    wide = mhc_post(y.bfloat16().float(), x.bfloat16().float(), shares)
    if device.type == "cpu":
        assert_same_bits(after, wide.bfloat16())
    assert_close(after, wide.bfloat16(), Bounds(rtol=2.0**-7))


def test_weights_and_shares_of_another_size_are_refused() -> None:
    y, x, shares = owed(1, 4, 8)
    (fn, base, scale), gain = weights(4, 8), torch.randn(8)
    for wrong, name in (
        ((y, x, shares, fn[:, :-1], base, scale, gain), "fn"),
        ((y, x, shares, fn, base, scale, gain[:7]), "weight"),
        ((y, x, shares[:, :4], fn, base, scale, gain), "shares"),
        ((y[:, :7], x, shares, fn, base, scale, gain), "y"),
    ):
        with pytest.raises(ShapeError, match=f"{name} has shape"):
            mhc_post_pre_norm(*wrong, iterations=2, norm_eps=EPS, hc_eps=HC_EPS)
