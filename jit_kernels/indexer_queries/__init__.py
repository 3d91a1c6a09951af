"""Indexer queries, from the projection to e4m3 with head weights: what scores are made of."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_hopper
from jit_kernels.indexer_queries.reference import HEADS
from jit_kernels.registry import Backend, select

__all__ = ["HEADS", "WIDTHS", "indexer_queries"]

# What the kernels that take the queries are made for.
WIDTHS = (32, 64, 128)

_MODULE = "jit_kernels.indexer_queries"
_indexer_queries: Callable[..., tuple[torch.Tensor, torch.Tensor]] = select(
    "indexer_queries",
    [
        Backend("stream", f"{_MODULE}.stream_backend:indexer_queries", why_no_hopper, "cuda"),
        Backend("reference", f"{_MODULE}.reference:indexer_queries"),
    ],
)


def indexer_queries(
    q: torch.Tensor, weights: torch.Tensor, rotation: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate queries, transform them (Hadamard), round them to e4m3 with one scale a head.

    q         [T, H, C] float32 or bfloat16, H at most 64, C one of 32, 64, 128; heads of a token
              side by side, tokens may be strided; not changed
    weights   [T, H] float32 or bfloat16   of the heads; may be negative; tokens may be strided
    rotation  [T, 2, R] float32 at each token's position, as `jit_kernels.rope.rope` takes it

    Returns (codes [T, P, C] float8_e4m3fn; weights * scale * (H C)^-0.5, [T, P] float32), P being
    32 or 64: heads that are added have codes and weights of zero. Float32 in between; the transform
    takes 16 bits of each number. Raises ShapeError. Source: layers/NETWORK.md, 5.
    """
    tokens, heads, width = q.shape
    check_dtype("q", q, torch.float32, torch.bfloat16)
    check_shape("weights", weights, tokens, heads)
    check_dtype("weights", weights, torch.float32, torch.bfloat16)
    check_shape("rotation", rotation, tokens, 2, None)
    check_dtype("rotation", rotation, torch.float32)
    if width not in WIDTHS or not 0 < heads <= HEADS[-1]:
        raise ShapeError(
            f"q has {heads} heads of {width} channels, expected at most 64 of {WIDTHS}"
        )
    if rotation.shape[2] > width or rotation.shape[2] % 2:
        raise ShapeError(f"of {width} channels {rotation.shape[2]} turn, expected whole pairs")
    if tokens and (q.stride(2) != 1 or q.stride(1) != width or weights.stride(1) != 1):
        raise ShapeError("the heads of a token must lie side by side")
    return _indexer_queries(q, weights, rotation)
