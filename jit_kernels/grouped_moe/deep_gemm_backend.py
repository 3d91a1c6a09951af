"""Routed experts over rounded rows, multiplied by DeepGEMM.

DeepGEMM loads the tiles of blocks that are not there, and skips only their arithmetic, so it is
given as many blocks as there will be, most likely; those beyond, if ever there are any, go through
Triton, whose programs end at once where there is nothing to do. Source: DeepGEMM 0.1.4,
`m_grouped_fp8_gemm_nt_contiguous`: blocks of as many rows as it is told before, a row of expert -1
is padding.
"""

from collections.abc import Sequence

import torch
from deep_gemm import m_grouped_fp8_gemm_nt_contiguous, set_mk_alignment_for_contiguous_layout

from jit_kernels.cuda_device import why_no_hopper, why_no_triton
from jit_kernels.expert_blocks import block_limit
from jit_kernels.expert_weights.forms import Fp8Experts
from jit_kernels.grouped_moe.sorted_rows import CHANNELS, SortedRows, block_size, likely_blocks
from jit_kernels.grouped_moe.triton_run import Gate, run
from jit_kernels.grouped_moe.triton_tail import multiply_region
from jit_kernels.registry import Backend, select

_MODULE = "jit_kernels.grouped_moe"
gate_rows: Gate = select(
    "gate_rows",
    [
        Backend("cuda", f"{_MODULE}.cuda_backend:gate_rows", why_no_hopper, "cuda"),
        Backend("triton", f"{_MODULE}.triton_gate:gate_rows", why_no_triton),
    ],
)


def grouped_moe(
    codes: torch.Tensor,
    scales: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    parts: Fp8Experts,
    limit: float,
    plus: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Run the chosen experts; see `jit_kernels.grouped_moe.grouped_moe`."""
    return run(
        (codes, scales),
        experts,
        weights,
        parts,
        limit=limit,
        plus=plus,
        out_dtype=out_dtype,
        product=_product,
        gate=gate_rows,
        first=likely_blocks(experts.numel(), parts.sizes[0]),
    )


def rehearse(rows: int, sizes: Sequence[int], *, mixed: bool, device: torch.device) -> None:
    """Make DeepGEMM's calls for so many rows; see `jit_kernels.vendor_calls`.

    sizes  number of experts, channels of rows and of inner rows, experts that a row chooses
    """
    count, width, inner, top_k = sizes
    pairs = rows * top_k
    size = block_size(pairs, count)
    places = size * min(likely_blocks(pairs, count), block_limit(pairs, count, size))
    member = torch.zeros(places, dtype=torch.int32, device=device)
    for columns, depth in ((2 * inner, width), (width, inner)):
        codes = torch.empty((places, depth), dtype=torch.float8_e4m3fn, device=device)
        scales = torch.empty((depth // CHANNELS, places), device=device).T
        weight = torch.empty((count, columns, depth), dtype=torch.float8_e4m3fn, device=device)
        blocks = (count, columns // CHANNELS, depth // CHANNELS)
        out = torch.empty((places, columns), dtype=torch.bfloat16, device=device)
        _multiply((codes, scales), (weight, torch.empty(blocks, device=device)), out, member, size)


def _product(
    rows: SortedRows, weight: torch.Tensor, weight_scales: torch.Tensor, out: torch.Tensor
) -> None:
    head, tail = rows.region_scales()
    count, member = rows.first * rows.size, rows.member
    _multiply(
        (rows.codes[:count], head), (weight, weight_scales), out[:count], member[:count], rows.size
    )
    multiply_region(rows, tail, weight, weight_scales, out, first=rows.first)


def _multiply(
    rows: tuple[torch.Tensor, torch.Tensor],
    weight: tuple[torch.Tensor, torch.Tensor],
    out: torch.Tensor,
    member: torch.Tensor,
    size: int,
) -> None:
    if member.shape[0]:
        set_mk_alignment_for_contiguous_layout(size)
        m_grouped_fp8_gemm_nt_contiguous(rows, weight, out, member)
