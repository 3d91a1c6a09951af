"""Attention of a chunk's tokens over the keys that each names in a workspace."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.paged_attention import HEADS, WIDTH
from jit_kernels.registry import Backend, select
from jit_kernels.vendor_library import why_no_flash_mla

__all__ = ["KEY_TILE", "sparse_prefill"]

KEY_TILE = 128

_MODULE = "jit_kernels.sparse_prefill"
_sparse_prefill: Callable[..., torch.Tensor] = select(
    "sparse_prefill",
    [
        Backend(
            "flash_mla", f"{_MODULE}.flash_mla_backend:sparse_prefill", why_no_flash_mla, "cuda"
        ),
        Backend("reference", f"{_MODULE}.reference:sparse_prefill"),
    ],
)


def sparse_prefill(
    q: torch.Tensor,
    keys: torch.Tensor,
    index: torch.Tensor,
    *,
    sink: torch.Tensor,
    scale: float,
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return `softmax(scale * q . keys[index], sink) @ keys[index]`; keys are the values too.

    q        [T, H, 512] bfloat16, H at most 128
    keys     [S, 512] bfloat16, contiguous   the workspace
    index    [T, K] int32, K a multiple of 128   rows of the workspace; -1: no key
    sink     [H] float32   one more logit in the denominator, without a value
    lengths  [T] int32   entries [0, lengths) of a token's index are read, what stands after them
             may be anything; None: all K

    Returns [T, H, 512] bfloat16, float32 inside; a token without keys gets zeros. A token's bits
    do not depend on other tokens. Raises ShapeError.

    4 * H * 512 operations a key make this bound by arithmetic: at 520 TFLOP/s and 64 heads a
    token takes 0.16 us for 640 keys, and a chunk of 8,192 tokens 1.3 ms a layer. Layers that
    attend all blocks of 128 cost that at a context of 64k, and 17 ms where a million tokens are
    visible. `index` is then 272 MB for such a chunk: hand over slices, tokens are independent.
    Source: layers/NETWORK.md, 3.
    """
    check_shape("q", q, None, None, WIDTH)
    check_dtype("q", q, torch.bfloat16)
    tokens, heads = q.shape[0], q.shape[1]
    if heads > HEADS:
        raise ShapeError(f"q has {heads} heads, expected at most {HEADS}")
    check_shape("keys", keys, None, WIDTH)
    check_dtype("keys", keys, torch.bfloat16)
    check_shape("index", index, tokens, None)
    check_dtype("index", index, torch.int32)
    check_shape("sink", sink, heads)
    check_dtype("sink", sink, torch.float32)
    if not keys.is_contiguous() or index.stride(1) != 1:
        raise ShapeError("keys and rows of index must be contiguous")
    if index.shape[1] % KEY_TILE or not index.shape[1]:
        raise ShapeError(f"index has {index.shape[1]} columns, expected a multiple of {KEY_TILE}")
    if lengths is not None:
        check_shape("lengths", lengths, tokens)
        check_dtype("lengths", lengths, torch.int32)
    return _sparse_prefill(q, keys, index, sink, scale, lengths)
