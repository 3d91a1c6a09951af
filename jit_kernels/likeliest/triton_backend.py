"""The likeliest token in Triton: programs take parts of a row, one more takes what they found."""

import torch
import triton
import triton.language as tl

from jit_kernels.triton_launch import prepared

_PART = 4096
_BLOCK = 1024


@prepared
@triton.jit
def _part_kernel(
    logits_ptr: tl.tensor, logits_row: tl.tensor, vocab: tl.tensor, best_ptr: tl.tensor,
    id_ptr: tl.tensor, PART: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    ids = tl.full((BLOCK,), vocab, tl.int32)
    strange = tl.zeros((BLOCK,), tl.int32)
    for first in tl.static_range(0, PART, BLOCK):
        column = part * PART + first + lane
        here = column < vocab
        value = tl.load(logits_ptr + row * logits_row + column, mask=here, other=0.0)
        strange |= ((value != value) | (tl.abs(value) == float("inf"))).to(tl.int32)
        better = here & (value > best)
        best = tl.where(better, value, best)
        ids = tl.where(better, column, ids)
    most = tl.max(best, 0)
    found = tl.min(tl.where(best == most, ids, vocab), 0)
    at = row * tl.num_programs(1) + part
    tl.store(best_ptr + at, most)
    tl.store(id_ptr + at, tl.where(tl.max(strange, 0) > 0, -1, found))


@prepared
@triton.jit
def _row_kernel(
    best_ptr: tl.tensor, id_ptr: tl.tensor, parts: tl.tensor, vocab: tl.tensor, out_ptr: tl.tensor,
    POWER: tl.constexpr,
) -> None:  # fmt: skip
    row, part = tl.program_id(0), tl.arange(0, POWER)
    here = part < parts
    best = tl.load(best_ptr + row * parts + part, mask=here, other=float("-inf"))
    ids = tl.load(id_ptr + row * parts + part, mask=here, other=0)
    strange = tl.min(ids, 0) < 0
    found = tl.min(tl.where(here & (best == tl.max(best, 0)), ids, vocab), 0)
    tl.store(out_ptr + row, tl.where(strange, -1, found).to(tl.int64))


def likeliest(logits: torch.Tensor, out: torch.Tensor) -> None:
    """Write ids; see `jit_kernels.likeliest.likeliest`."""
    rows, vocab = logits.shape
    parts = triton.cdiv(vocab, _PART)
    if not rows:
        return
    best = torch.empty((rows, parts), dtype=torch.float32, device=logits.device)
    ids = torch.empty((rows, parts), dtype=torch.int32, device=logits.device)
    _part_kernel[(rows, parts)](
        logits, logits.stride(0), vocab, best, ids, PART=_PART, BLOCK=_BLOCK, num_warps=4
    )
    _row_kernel[(rows,)](
        best, ids, parts, vocab, out, POWER=triton.next_power_of_2(parts), num_warps=1
    )
