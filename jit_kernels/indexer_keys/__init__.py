"""Indexer keys and queries: rotation by Hadamard, fp8, and back."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dtype
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select

__all__ = ["decode_keys", "encode_keys", "hadamard", "quantise_queries"]

_MODULE = "jit_kernels.indexer_keys.reference"
_hadamard: Callable[..., torch.Tensor] = select(
    "hadamard", [on_host("indexer_keys.host:hadamard"), Backend("reference", f"{_MODULE}:hadamard")]
)
_encode_keys: Callable[..., torch.Tensor] = select(
    "encode_keys", [Backend("reference", f"{_MODULE}:encode_keys")]
)
_decode_keys: Callable[..., torch.Tensor] = select(
    "decode_keys",
    [on_host("indexer_keys.host:decode_keys"), Backend("reference", f"{_MODULE}:decode_keys")],
)
_quantise_queries: Callable[..., tuple[torch.Tensor, torch.Tensor]] = select(
    "quantise_queries",
    [
        on_host("indexer_keys.host:quantise_queries"),
        Backend("reference", f"{_MODULE}:quantise_queries"),
    ],
)


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """Return the normalised Hadamard transform of the last axis, Sylvester order, in float32.

    x  [..., C] float32 or bfloat16, C a power of two; not changed

    Raises ShapeError.
    """
    width = x.shape[-1]
    if width < 1 or width & (width - 1):
        raise ShapeError(f"x has {width} channels, expected a power of two")
    return _hadamard(x)


def encode_keys(keys: torch.Tensor, *, record_format: str) -> torch.Tensor:
    """Return the bytes of one indexer key per row.

    keys           [M, C] float32 or bfloat16
    record_format  "fp8": C e4m3 bytes, then one float32 power-of-two scale; "bf16", "fp32"

    Returns [M, bytes] uint8. The row maximum is floored at 1e-4.
    """
    check_dtype("keys", keys, torch.float32, torch.bfloat16)
    return _encode_keys(keys, record_format)


def decode_keys(rows: torch.Tensor, *, record_format: str) -> torch.Tensor:
    """Return the numbers of keys as `encode_keys` wrote them, [M, C] float32."""
    check_dtype("rows", rows, torch.uint8)
    return _decode_keys(rows, record_format)


def quantise_queries(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round queries to e4m3 with one power-of-two scale per head.

    q  [T, H, C] float32

    Returns (values [T, H, C] float32, each an e4m3 number; scales [T, H] float32, to be
    multiplied into the head weights).
    """
    check_dtype("q", q, torch.float32)
    return _quantise_queries(q)
