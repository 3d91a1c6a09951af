"""Manifold-constrained hyper-connections: mix streams into a block and its result back."""

from collections.abc import Callable

import torch

from jit_kernels.checks import check_dense, check_shape
from jit_kernels.cuda_device import why_no_hopper, why_no_triton
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select

__all__ = ["mhc_head", "mhc_post", "mhc_pre", "mhc_pre_norm"]

_MODULE = "jit_kernels.hyper_connection.reference"
_TRITON = "jit_kernels.hyper_connection.triton_backend"
_POST = "jit_kernels.hyper_connection.triton_post"
_CLUSTER = "jit_kernels.hyper_connection.cluster_backend"
_mhc_pre: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = select(
    "mhc_pre",
    [
        Backend("cluster", f"{_CLUSTER}:mhc_pre", why_no_hopper, "cuda"),
        Backend("triton", f"{_TRITON}:mhc_pre", why_no_triton, "cuda"),
        on_host("hyper_connection.host:mhc_pre"),
        Backend("reference", f"{_MODULE}:mhc_pre"),
    ],
)
_mhc_post: Callable[..., torch.Tensor] = select(
    "mhc_post",
    [
        Backend("triton", f"{_POST}:mhc_post", why_no_triton, "cuda"),
        on_host("hyper_connection.host:mhc_post"),
        Backend("reference", f"{_MODULE}:mhc_post"),
    ],
)
_mhc_head: Callable[..., torch.Tensor] = select(
    "mhc_head",
    [
        Backend("cluster", f"{_CLUSTER}:mhc_head", why_no_hopper, "cuda"),
        Backend("triton", f"{_TRITON}:mhc_head", why_no_triton, "cuda"),
        on_host("hyper_connection.host:mhc_head"),
        Backend("reference", f"{_MODULE}:mhc_head"),
    ],
)
_mhc_pre_norm: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = select(
    "mhc_pre_norm",
    [
        Backend("cluster", f"{_CLUSTER}:mhc_pre_norm", why_no_hopper, "cuda"),
        Backend("triton", f"{_TRITON}:mhc_pre_norm", why_no_triton, "cuda"),
        on_host("hyper_connection.host:mhc_pre_norm"),
        Backend("reference", "jit_kernels.hyper_connection.composed:mhc_pre_norm"),
    ],
)


def mhc_pre(
    streams: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    *,
    iterations: int,
    norm_eps: float,
    hc_eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mix N streams into one block input and compute how the result goes back.

    streams     [T, N, d] float32 or bfloat16
    fn          [(2 + N) N, N d] float32    rows for pre, post, then the N x N matrix row-major
    base        [(2 + N) N] float32
    scale       [3] float32                 gain of pre, post, matrix
    iterations  Sinkhorn normalisations of the matrix: columns each time, rows but the first

    Returns (input [T, d] in the dtype of `streams`, post [T, N] float32, mixing [T, N, N]
    float32), float32 inside. Raises ShapeError.
    Source: layers/NETWORK.md, 2; `mixing[j, k]` is the share of stream j in new stream k.
    """
    count, width = streams.shape[1], streams.shape[2]
    check_shape("fn", fn, (2 + count) * count, count * width)
    check_shape("base", base, (2 + count) * count)
    check_shape("scale", scale, 3)
    for name, tensor in (("fn", fn), ("base", base), ("scale", scale)):
        check_dense(name, tensor, torch.float32)
    return _mhc_pre(
        streams, fn, base, scale, iterations=iterations, norm_eps=norm_eps, hc_eps=hc_eps
    )


def mhc_pre_norm(
    streams: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor,
    *,
    iterations: int,
    norm_eps: float,
    hc_eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what `mhc_pre` does, its first part normed: `rms_norm(input, weight)`.

    weight  [d] float32; the norm takes `norm_eps` too; the rest as in `mhc_pre`

    The input is rounded to the dtype of `streams` before the norm and after it. Raises ShapeError.
    """
    count, width = streams.shape[1], streams.shape[2]
    check_shape("fn", fn, (2 + count) * count, count * width)
    check_shape("base", base, (2 + count) * count)
    check_shape("scale", scale, 3)
    check_shape("weight", weight, width)
    for name, tensor in (("fn", fn), ("base", base), ("scale", scale)):
        check_dense(name, tensor, torch.float32)
    return _mhc_pre_norm(
        streams, fn, base, scale, weight, iterations=iterations, norm_eps=norm_eps, hc_eps=hc_eps
    )


def mhc_post(
    y: torch.Tensor,
    streams: torch.Tensor,
    post: torch.Tensor,
    mixing: torch.Tensor,
    *,
    next_settled: bool = False,
) -> torch.Tensor:
    """Return the new streams: `post_k * y + sum_j mixing[j, k] * streams_j`.

    y             [T, d] float32 or bfloat16     what the block computed
    streams       [T, N, d] float32 or bfloat16  as before the block
    post          [T, N] float32
    mixing        [T, N, N] float32
    next_settled  on the device, the launch after reads nothing of this one, or of those before that
                  have not ended, until it has waited; so it is with `mhc_pre`, `mhc_pre_norm` and
                  `mhc_head`, which read their weights before

    Returns [T, N, d] in the dtype of `streams`. Raises ShapeError.
    """
    tokens, count, width = streams.shape
    check_shape("y", y, tokens, width)
    check_shape("mixing", mixing, tokens, count, count)
    return _mhc_post(y, streams, post, mixing, next_settled)


def mhc_head(
    streams: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    *,
    norm_eps: float,
    hc_eps: float,
) -> torch.Tensor:
    """Mix N streams into the one that the final norm sees.

    streams  [T, N, d];  fn [N, N d], base [N], scale [1] float32

    Returns [T, d] in the dtype of `streams`. Raises ShapeError.
    """
    count, width = streams.shape[1], streams.shape[2]
    check_shape("fn", fn, count, count * width)
    check_shape("scale", scale, 1)
    for name, tensor in (("fn", fn), ("base", base), ("scale", scale)):
        check_dense(name, tensor, torch.float32)
    return _mhc_head(streams, fn, base, scale, norm_eps=norm_eps, hc_eps=hc_eps)
