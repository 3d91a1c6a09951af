"""Latent records of sparse attention: from numbers to the bytes that are stored, and back."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.host import on_host
from jit_kernels.latent_records.reference import BLOCK, RECORD_DTYPES
from jit_kernels.registry import Backend, select

__all__ = ["BLOCK", "decode_latents", "encode_latents", "latent_record_bytes"]

_MODULE = "jit_kernels.latent_records.reference"
_encode_latents: Callable[..., torch.Tensor] = select(
    "encode_latents", [Backend("reference", f"{_MODULE}:encode_latents")]
)
_decode_latents: Callable[..., torch.Tensor] = select(
    "decode_latents",
    [
        on_host("latent_records.host:decode_latents"),
        Backend("reference", f"{_MODULE}:decode_latents"),
    ],
)


def latent_record_bytes(channels: int, *, record_format: str, rope_channels: int) -> int:
    """Return the bytes of a record: 656 in fp8 for 512 + 64 channels.

    Raises ShapeError when the channels without position of an fp8 record are no whole number of
    blocks.
    """
    plain = channels - rope_channels
    if record_format != "fp8":
        return channels * RECORD_DTYPES[record_format].itemsize
    if plain <= 0 or plain % BLOCK:
        raise ShapeError(f"fp8 records need a multiple of {BLOCK} unrotated channels, got {plain}")
    return plain + 4 * (plain // BLOCK) + 2 * rope_channels


def encode_latents(
    records: torch.Tensor, *, record_format: str, rope_channels: int
) -> torch.Tensor:
    """Return the bytes of one record per row of `records`.

    records        [M, D] float32   the last `rope_channels` are rotated already
    record_format  "fp8": e4m3 in blocks of 128 channels, a float32 power-of-two scale of each
                   block, rotated channels bfloat16; "bf16", "fp32": all channels in that type

    Returns [M, bytes] uint8. The block maximum is floored at 1e-4. Raises ShapeError.
    Source: FlashMLA's layout for DeepSeek V3.2; scales as its published model code has them.
    """
    check_dtype("records", records, torch.float32)
    check_shape("records", records, None, None)
    latent_record_bytes(records.shape[1], record_format=record_format, rope_channels=rope_channels)
    return _encode_latents(records, record_format, rope_channels)


def decode_latents(
    rows: torch.Tensor, *, record_format: str, channels: int, rope_channels: int
) -> torch.Tensor:
    """Return the numbers of records as `encode_latents` wrote them.

    rows  [M, bytes] uint8, contiguous

    Returns [M, channels] float32. Raises ShapeError.
    """
    check_dtype("rows", rows, torch.uint8)
    size = latent_record_bytes(channels, record_format=record_format, rope_channels=rope_channels)
    check_shape("rows", rows, None, size)
    return _decode_latents(rows, record_format, channels, rope_channels)
