"""KV records: from numbers to the bytes that are stored, and back."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.host import on_host
from jit_kernels.kv_records.reference import BLOCK, RECORD_DTYPES
from jit_kernels.registry import Backend, select

__all__ = ["BLOCK", "RECORD_DTYPES", "decode_records", "encode_records", "packed_record_bytes"]

_MODULE = "jit_kernels.kv_records.reference"
_encode_records: Callable[..., torch.Tensor] = select(
    "encode_records",
    [on_host("kv_records.host:encode_records"), Backend("reference", f"{_MODULE}:encode_records")],
)
_decode_records: Callable[..., torch.Tensor] = select(
    "decode_records",
    [on_host("kv_records.host:decode_records"), Backend("reference", f"{_MODULE}:decode_records")],
)


def packed_record_bytes(channels: int, rope_channels: int) -> tuple[int, int]:
    """Return (data, scale) bytes of a packed fp8 record: (576, 8) for 448 + 64 channels.

    Raises ShapeError when the channels without position are no whole number of blocks.
    """
    plain = channels - rope_channels
    if plain <= 0 or plain % BLOCK:
        raise ShapeError(f"fp8 records need a multiple of {BLOCK} unrotated channels, got {plain}")
    return plain + 2 * rope_channels, -(-plain // BLOCK // 8) * 8


def encode_records(kv: torch.Tensor, *, record_format: str, rope_channels: int) -> torch.Tensor:
    """Return the bytes of one record per row of `kv`.

    kv             [M, D] float32 or bfloat16   the last `rope_channels` are rotated already
    record_format  "fp8": e4m3 in blocks of 64 with power-of-two scales, rotated channels
                   bfloat16, then one ue8m0 byte a block and zero bytes up to a multiple of 8;
                   "bf16", "fp32": all channels in that type

    Returns [M, bytes] uint8. The block maximum is floored at 1e-4. Raises ShapeError.
    Source: layers/NETWORK.md, 7; the floor is that of the published model code.
    """
    check_dtype("kv", kv, torch.float32, torch.bfloat16)
    if record_format == "fp8":
        packed_record_bytes(kv.shape[1], rope_channels)
    return _encode_records(kv, record_format, rope_channels)


def decode_records(
    rows: torch.Tensor, *, record_format: str, channels: int, rope_channels: int
) -> torch.Tensor:
    """Return the numbers of records as `encode_records` wrote them.

    rows  [M, bytes] uint8

    Returns [M, channels] float32. Raises ShapeError.
    """
    check_dtype("rows", rows, torch.uint8)
    if record_format == "fp8":
        check_shape("rows", rows, None, sum(packed_record_bytes(channels, rope_channels)))
    else:
        check_shape("rows", rows, None, channels * RECORD_DTYPES[record_format].itemsize)
    return _decode_records(rows, record_format, channels, rope_channels)
