"""Indexer queries and keys in C; keys are encoded by the reference: a few a step."""

import torch

from jit_kernels.host import function, rows_of
from jit_kernels.indexer_keys import reference

_hadamard = function("hadamard", "pipii")
_quantise = function("quantise_queries", "pppii")
_decode = function("decode_keys", "ppii")


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """Transform the last axis; see `jit_kernels.indexer_keys.hadamard`."""
    width = x.shape[-1]
    rows = rows_of(x if x.ndim == 2 else x.reshape(-1, width))
    out = torch.empty(x.shape, dtype=torch.float32)
    _hadamard(rows.data_ptr(), rows.stride(0), out.data_ptr(), rows.shape[0], width)
    return out


def quantise_queries(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round queries; see `jit_kernels.indexer_keys.quantise_queries`."""
    q = q.contiguous()
    values, scales = torch.empty_like(q), torch.empty(q.shape[:-1], dtype=torch.float32)
    pointers = (q.data_ptr(), values.data_ptr(), scales.data_ptr())
    _quantise(*pointers, scales.numel(), q.shape[-1])
    return values, scales


def decode_keys(rows: torch.Tensor, record_format: str) -> torch.Tensor:
    """Return key numbers; see `jit_kernels.indexer_keys.decode_keys`."""
    if record_format != "fp8":
        return reference.decode_keys(rows, record_format)
    rows = rows.contiguous()
    out = torch.empty((rows.shape[0], rows.shape[1] - 4), dtype=torch.float32)
    _decode(rows.data_ptr(), out.data_ptr(), *out.shape)
    return out
