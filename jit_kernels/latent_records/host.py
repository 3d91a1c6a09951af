"""Packed latent records in C; they are encoded by the reference: a few a step."""

import torch

from jit_kernels.host import function
from jit_kernels.latent_records import reference

_decode = function("decode_latents", "ppiii")


def decode_latents(
    rows: torch.Tensor, record_format: str, channels: int, rope_channels: int
) -> torch.Tensor:
    """Return record numbers; see `jit_kernels.latent_records.decode_latents`."""
    if record_format != "fp8":
        return reference.decode_latents(rows, record_format, channels, rope_channels)
    rows = rows.contiguous()
    out = torch.empty((len(rows), channels), dtype=torch.float32)
    _decode(rows.data_ptr(), out.data_ptr(), len(rows), channels - rope_channels, rope_channels)
    return out
