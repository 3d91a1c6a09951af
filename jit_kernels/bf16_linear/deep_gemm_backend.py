"""Products of bfloat16 numbers by DeepGEMM, whose rows do not depend on their number.

Its copy engine takes rows of whole 16 bytes; weights of other sizes go to the reference.
"""

from collections.abc import Sequence

import torch
from deep_gemm import bf16_gemm_nt

from jit_kernels.bf16_linear import cuda_backend, reference


def bf16_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply; see `jit_kernels.bf16_linear.bf16_linear`."""
    if not _takes(*weight.shape):
        return reference.bf16_linear(x, weight)
    out = torch.empty((x.shape[0], weight.shape[0]), dtype=torch.float32, device=x.device)
    if out.numel():
        bf16_gemm_nt(x.contiguous(), weight, out)
    return out


def bf16_linear_mixed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Stream the weight for few rows, whose time its bytes are, else do as `bf16_linear` does."""
    if cuda_backend.takes(x, weight):
        return cuda_backend.bf16_linear(x, weight)
    return bf16_linear(x, weight)


def rehearse(rows: int, sizes: Sequence[int], *, mixed: bool, device: torch.device) -> None:
    """Make DeepGEMM's call for so many rows, if there is one; see `jit_kernels.vendor_calls`.

    sizes  of the weight, [N, K]
    mixed  few rows are streamed
    """
    columns, depth = sizes
    if not _takes(columns, depth):
        return
    x = torch.empty((rows, depth), dtype=torch.bfloat16, device=device)
    weight = torch.empty((columns, depth), dtype=torch.bfloat16, device=device)
    if not mixed or not cuda_backend.takes(x, weight):
        bf16_linear(x, weight)


def _takes(columns: int, depth: int) -> bool:
    return not (columns | depth) % 8
