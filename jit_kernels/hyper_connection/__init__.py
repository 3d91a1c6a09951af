"""Manifold-constrained hyper-connections: mix streams into a block and its result back."""

from collections.abc import Callable

import torch

from jit_kernels.checks import check_dense, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_hopper, why_no_triton
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select

__all__ = ["mhc_head", "mhc_post", "mhc_post_pre_norm"]

_MODULE = "jit_kernels.hyper_connection.reference"
_POST = "jit_kernels.hyper_connection.triton_post"
_CLUSTER = "jit_kernels.hyper_connection.cluster_backend"
_mhc_post_pre_norm: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = select(
    "mhc_post_pre_norm",
    [
        Backend("cluster", f"{_CLUSTER}:mhc_post_pre_norm", why_no_hopper, "cuda"),
        on_host("hyper_connection.host:mhc_post_pre_norm"),
        Backend("reference", f"{_MODULE}:mhc_post_pre_norm"),
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
        on_host("hyper_connection.host:mhc_head"),
        Backend("reference", f"{_MODULE}:mhc_head"),
    ],
)


def mhc_post(y: torch.Tensor, streams: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Return the new streams: of k, `sum_j shares[j, k] * streams_j + shares[N, k] * y`.

    y        [T, d] float32 or bfloat16     what the block computed
    streams  [T, N, d] float32 or bfloat16  as before the block
    shares   [T, N + 1, N] float32          from `mhc_post_pre_norm`

    Returns [T, N, d] in the dtype of `streams`. Raises ShapeError.
    """
    _check_owed(y, streams, shares)
    return _mhc_post(y, streams, shares.contiguous())


def mhc_post_pre_norm(
    y: torch.Tensor,
    streams: torch.Tensor,
    shares: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor,
    *,
    iterations: int,
    norm_eps: float,
    hc_eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mix a block's result into the streams, and these into the input of the next block.

    y           [T, d] float32 or bfloat16     what the block computed
    streams     [T, N, d] float32 or bfloat16  as before the block
    shares      [T, N + 1, N] float32          how both are mixed; see `mhc_post`
    fn          [(2 + N) N, N d] float32       rows for pre, post, then the N x N matrix row-major
    base        [(2 + N) N] float32
    scale       [3] float32                    gain of pre, post, matrix
    weight      [d] float32                    of the norm, which takes `norm_eps` too
    iterations  Sinkhorn normalisations of the matrix: columns each time, rows but the first

    Returns (new streams [T, N, d], the next block's input [T, d], normed, both in the dtype of
    `streams`, and the shares of its result [T, N + 1, N] float32). Sums are float32; the input is
    rounded before the norm and after it. Where clusters of blocks mix, they take two bytes of a
    number of `fn`, see `mix_rows`, which are made when it was written. Raises ShapeError.
    Source: layers/NETWORK.md, 2.
    """
    _check_owed(y, streams, shares)
    count, width = streams.shape[1:]
    check_shape("fn", fn, (2 + count) * count, count * width)
    check_shape("base", base, (2 + count) * count)
    check_shape("scale", scale, 3)
    check_shape("weight", weight, width)
    for name, tensor in (("fn", fn), ("base", base), ("scale", scale), ("weight", weight)):
        check_dense(name, tensor, torch.float32)
    weights = fn, base, scale, weight
    return _mhc_post_pre_norm(
        *(y, streams, shares.contiguous(), *weights),
        iterations=iterations,
        norm_eps=norm_eps,
        hc_eps=hc_eps,
    )


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


def _check_owed(y: torch.Tensor, streams: torch.Tensor, shares: torch.Tensor) -> None:
    tokens, count, width = streams.shape
    check_shape("y", y, tokens, width)
    check_shape("shares", shares, tokens, count + 1, count)
    check_dtype("shares", shares, torch.float32)
