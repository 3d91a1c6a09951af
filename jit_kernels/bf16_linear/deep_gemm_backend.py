"""Products of bfloat16 numbers by DeepGEMM, whose rows do not depend on their number.

Its copy engine takes rows of whole 16 bytes; other calls go to Triton, in tiles of one size, so
that a row's bits depend on nothing but itself there, too.
"""

from collections.abc import Sequence

import torch
from deep_gemm import bf16_gemm_nt

from jit_kernels.bf16_linear import cuda_backend, triton_backend
from jit_kernels.cuda_device import why_no_hopper

# Up to here the weight's bytes are all that counts, and streaming them is faster.
FEW_ROWS = 8
_ONE_TILE = triton_backend.MANY_ROWS[-1][1]
_FOR_FEW = cuda_backend if why_no_hopper() is None else triton_backend


def bf16_linear(x: torch.Tensor, weight: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """Multiply; see `jit_kernels.bf16_linear.bf16_linear`."""
    if weight.shape[0] % 8 or weight.shape[1] % 8:
        return triton_backend.multiply(x, weight, out_dtype, tile=_ONE_TILE)
    out = torch.empty((x.shape[0], weight.shape[0]), dtype=out_dtype, device=x.device)
    if out.numel():
        bf16_gemm_nt(x.contiguous(), weight, out)
    return out


def bf16_linear_mixed(
    x: torch.Tensor, weight: torch.Tensor, out_dtype: torch.dtype
) -> torch.Tensor:
    """Stream the weight for few rows, else do as `bf16_linear` does."""
    if x.shape[0] <= FEW_ROWS:
        return _FOR_FEW.bf16_linear(x, weight, out_dtype)
    return bf16_linear(x, weight, out_dtype)


def rehearse(rows: int, sizes: Sequence[int], *, mixed: bool, device: torch.device) -> None:
    """Make DeepGEMM's call for so many rows, if there is one; see `jit_kernels.vendor_calls`.

    sizes  of the weight, [N, K]; the product is float32
    mixed  few rows go elsewhere
    """
    columns, depth = sizes
    if (mixed and rows <= FEW_ROWS) or columns % 8 or depth % 8:
        return
    x = torch.empty((rows, depth), dtype=torch.bfloat16, device=device)
    weight = torch.empty((columns, depth), dtype=torch.bfloat16, device=device)
    bf16_linear(x, weight, torch.float32)
