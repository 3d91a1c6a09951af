"""Queries as latents are multiplied with: each head's through the weight of its keys."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select

__all__ = ["latent_queries"]

_latent_queries: Callable[..., torch.Tensor] = select(
    "latent_queries",
    [
        on_host("latent_queries.host:latent_queries"),
        Backend("reference", "jit_kernels.latent_queries.reference:latent_queries"),
    ],
)


def latent_queries(q: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Return `q[:, h] @ keys[h]` for every head h.

    q     [T, H, K] float32   channels lie one after another
    keys  [H, K, N] float32 or bfloat16   so do they; a weight as files have it, not transposed

    Returns [T, H, N] float32. A token's bits depend on its own q alone. Raises ShapeError.
    """
    check_shape("q", q, None, keys.shape[0], keys.shape[1])
    check_dtype("q", q, torch.float32)
    check_dtype("keys", keys, torch.float32, torch.bfloat16)
    if q.stride(2) != 1 or keys.stride(2) != 1:
        raise ShapeError(f"channels have strides {q.stride(2)} and {keys.stride(2)}, not 1")
    return _latent_queries(q, keys)
