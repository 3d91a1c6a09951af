"""Compression in C."""

from collections.abc import Sequence
from ctypes import c_int64

import torch

from jit_kernels.host import function, raise_fault, rows_of

_pool_members = function("pool_members", "pipiipiiii")
_fold_blocks = function("fold_blocks", "pipipppii")


def pool_members(
    rows: torch.Tensor, members: torch.Tensor, kv: int, gate: int, width: int
) -> torch.Tensor:
    """Pool rows; see `jit_kernels.compress_kv.pool_members`."""
    rows, members = rows_of(rows), members.contiguous()
    out = torch.empty((members.shape[0], width), dtype=torch.float32)
    code = _pool_members(
        *(rows.data_ptr(), rows.stride(0), members.data_ptr(), kv, gate, out.data_ptr()),
        *(*members.shape, width, rows.shape[0]),
    )
    raise_fault(code)
    return out


def fold_blocks(
    kv: torch.Tensor, gate: torch.Tensor, start: torch.Tensor, active: Sequence[int]
) -> torch.Tensor:
    """Fold tokens; see `jit_kernels.compress_kv.fold_blocks`."""
    kv, gate, start = rows_of(kv), rows_of(gate), start.contiguous()
    out = torch.empty((kv.shape[0], 3, kv.shape[1]), dtype=torch.float32)
    _fold_blocks(
        *(kv.data_ptr(), kv.stride(0), gate.data_ptr(), gate.stride(0), start.data_ptr()),
        *((c_int64 * len(active))(*active), out.data_ptr(), len(active), kv.shape[1]),
    )
    return out
