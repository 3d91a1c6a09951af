"""Packed KV records in C; records of plain numbers are the reference's views."""

import torch

from jit_kernels.host import function, rows_of
from jit_kernels.kv_records import reference

_encode = function("encode_records", "pipiiii")
_decode = function("decode_records", "ppiiii")


def encode_records(kv: torch.Tensor, record_format: str, rope_channels: int) -> torch.Tensor:
    """Return record bytes; see `jit_kernels.kv_records.encode_records`."""
    if record_format != "fp8":
        return reference.encode_records(kv, record_format, rope_channels)
    kv = rows_of(kv)
    rows, plain = kv.shape[0], kv.shape[1] - rope_channels
    scales = _scale_bytes(plain)
    out = torch.empty((rows, plain + 2 * rope_channels + scales), dtype=torch.uint8)
    pointers = (kv.data_ptr(), kv.stride(0), out.data_ptr())
    _encode(*pointers, rows, plain, rope_channels, scales)
    return out


def decode_records(
    rows: torch.Tensor, record_format: str, channels: int, rope_channels: int
) -> torch.Tensor:
    """Return record numbers; see `jit_kernels.kv_records.decode_records`."""
    if record_format != "fp8":
        return reference.decode_records(rows, record_format, channels, rope_channels)
    rows, plain = rows.contiguous(), channels - rope_channels
    out = torch.empty((rows.shape[0], channels), dtype=torch.float32)
    sizes = (rows.shape[0], plain, rope_channels, _scale_bytes(plain))
    _decode(rows.data_ptr(), out.data_ptr(), *sizes)
    return out


def _scale_bytes(plain: int) -> int:
    return -(-plain // reference.BLOCK // 8) * 8
