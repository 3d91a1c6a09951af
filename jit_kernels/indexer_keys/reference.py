"""Indexer keys and queries in plain torch."""

import torch

from jit_kernels.kv_records.reference import RECORD_DTYPES, power_of_two, quantise_e4m3


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """Transform the last axis; see `jit_kernels.indexer_keys.hadamard`."""
    width = x.shape[-1]
    result = x.to(torch.float32)
    half = 1
    while half < width:
        low, high = result.unflatten(-1, (width // (2 * half), 2, half)).unbind(-2)
        result = torch.stack((low + high, low - high), -2).flatten(-3)
        half *= 2
    return result * width**-0.5


def encode_keys(keys: torch.Tensor, record_format: str) -> torch.Tensor:
    """Return key bytes; see `jit_kernels.indexer_keys.encode_keys`."""
    if record_format != "fp8":
        return keys.to(RECORD_DTYPES[record_format]).contiguous().view(torch.uint8)
    codes, exponents = quantise_e4m3(keys.to(torch.float32))
    scales = power_of_two(exponents).unsqueeze(1).view(torch.uint8)
    return torch.cat((codes.view(torch.uint8), scales), 1)


def decode_keys(rows: torch.Tensor, record_format: str) -> torch.Tensor:
    """Return key numbers; see `jit_kernels.indexer_keys.decode_keys`."""
    if record_format != "fp8":
        return rows.view(RECORD_DTYPES[record_format]).to(torch.float32)
    codes = rows[:, :-4].view(torch.float8_e4m3fn).to(torch.float32)
    return codes * rows[:, -4:].contiguous().view(torch.float32)


def quantise_queries(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round queries; see `jit_kernels.indexer_keys.quantise_queries`."""
    codes, exponents = quantise_e4m3(q)
    return codes.to(torch.float32), power_of_two(exponents)
