"""Latent records in plain torch."""

import torch

from jit_kernels.kv_records.reference import RECORD_DTYPES, power_of_two, quantise_e4m3

BLOCK = 128

__all__ = ["BLOCK", "RECORD_DTYPES", "decode_latents", "encode_latents"]


def encode_latents(records: torch.Tensor, record_format: str, rope_channels: int) -> torch.Tensor:
    """Return record bytes; see `jit_kernels.latent_records.encode_latents`."""
    if record_format != "fp8":
        return records.to(RECORD_DTYPES[record_format]).contiguous().view(torch.uint8)
    plain = records.shape[1] - rope_channels
    codes, exponents = quantise_e4m3(records[:, :plain].unflatten(1, (-1, BLOCK)))
    parts = (
        codes.flatten(1),
        power_of_two(exponents),
        records[:, plain:].to(torch.bfloat16).contiguous(),
    )
    return torch.cat([part.view(torch.uint8) for part in parts], 1)


def decode_latents(
    rows: torch.Tensor, record_format: str, channels: int, rope_channels: int
) -> torch.Tensor:
    """Return record numbers; see `jit_kernels.latent_records.decode_latents`."""
    if record_format != "fp8":
        return rows.view(RECORD_DTYPES[record_format]).to(torch.float32)
    plain = channels - rope_channels
    codes, scales, turned = rows.split([plain, 4 * (plain // BLOCK), 2 * rope_channels], 1)
    numbers = codes.view(torch.float8_e4m3fn).to(torch.float32).unflatten(1, (-1, BLOCK))
    numbers = numbers * scales.contiguous().view(torch.float32).unsqueeze(2)
    last = turned.contiguous().view(torch.bfloat16).to(torch.float32)
    return torch.cat((numbers.flatten(1), last), 1)
