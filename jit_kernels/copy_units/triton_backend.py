"""Units copied in Triton, eight bytes a number: a program for a part of a unit in a layer."""

import torch
import triton
import triton.language as tl

from jit_kernels.copy_units import WORD
from jit_kernels.triton_launch import prepared

WORDS = 1024


@prepared
@triton.jit(do_not_specialize=["count", "units"])
def _kernel(
    pool_ptr: tl.tensor, pairs_ptr: tl.tensor, count: tl.tensor, units: tl.tensor,
    UNIT: tl.constexpr, WORDS: tl.constexpr,
) -> None:  # fmt: skip
    nth, first = tl.program_id(1), tl.program_id(2).to(tl.int64) * units
    source = (first + tl.load(pairs_ptr + nth)) * UNIT
    target = (first + tl.load(pairs_ptr + count + nth)) * UNIT
    word = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    pool_ptr = pool_ptr.to(tl.pointer_type(tl.int64))
    words = tl.load(pool_ptr + source + word, mask=word < UNIT)
    tl.store(pool_ptr + target + word, words, mask=word < UNIT)


def copy_units(pool: torch.Tensor, pairs: torch.Tensor) -> None:
    """Copy; see `jit_kernels.copy_units.copy_units`."""
    layers, units, size = pool.shape
    count = pairs.shape[1]
    if not layers or not count:
        return
    _kernel[(triton.cdiv(size // WORD, WORDS), count, layers)](
        *(pool, pairs.contiguous(), count, units),
        UNIT=size // WORD,
        WORDS=WORDS,
        num_warps=4,
    )
