"""Stream mixing for training is the server's."""

import torch

from jit_kernels.hyper_connection import mhc_head, mhc_post, mhc_post_pre_norm
from jit_kernels.rms_norm import rms_norm
from tests.testing.compare import Bounds, assert_close
from tests.train.streams import mix_head, mix_in, mix_out

CLOSE = Bounds(atol=1e-5, rtol=1e-5)


def test_mixing_in_and_out_are_the_servers_ops() -> None:
    streams, fn = torch.randn(7, 4, 10), torch.randn(24, 40) * 0.2
    base, scale, y = torch.randn(24), torch.randn(3), torch.randn(7, 10)

    # Nothing is mixed back first.
    kept = torch.cat((torch.eye(4), torch.zeros(1, 4))).expand(7, -1, -1).contiguous()
    gain = torch.ones(10)
    _, normed, shares = mhc_post_pre_norm(
        *(y, streams, kept, fn, base, scale, gain), iterations=5, norm_eps=1e-6, hc_eps=1e-3
    )
    mixed, post, mixing = mix_in(streams, fn, base, scale, 5, 1e-6, 1e-3)

    assert_close(rms_norm(mixed, gain, eps=1e-6), normed, CLOSE)
    assert_close(mixing, shares[:, :4], CLOSE)
    assert_close(post, shares[:, 4], CLOSE)
    assert_close(mix_out(y, streams, post, mixing), mhc_post(y, streams, shares), CLOSE)


def test_the_heads_mixing_is_the_servers_op() -> None:
    streams, fn = torch.randn(7, 4, 10), torch.randn(4, 40)
    base, scale = torch.randn(4), torch.randn(1)

    want = mhc_head(streams, fn, base, scale, norm_eps=1e-6, hc_eps=1e-3)

    assert_close(mix_head(streams, fn, base, scale, 1e-6, 1e-3), want, CLOSE)
