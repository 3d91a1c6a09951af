"""Blocks of many pairs in CUDA C++: counted chunk by chunk, then each pair is put at its place.

The sources are in `cuda`; they are compiled by nvcc at first use. They take up to 512 experts;
more, and few pairs, go through Triton, whose time grows with the pairs (3.4 us for 384 on an H200;
98,304 take 14 us here).
"""

import ctypes
import functools
from pathlib import Path

import torch

from jit_kernels.cuda_device import launched
from jit_kernels.cuda_library import load
from jit_kernels.expert_blocks import triton_backend
from jit_kernels.expert_blocks.blocks import ExpertBlocks, block_limit

_MAX_EXPERTS, _TILE = 512, 1024
# Pairs up to which Triton is faster; more are cut into chunks, at most so many.
FEW_PAIRS, MAX_CHUNKS = 4 * _TILE, 128
# A chunk's counts are numbers of 16 bits.
_MAX_PAIRS = MAX_CHUNKS * 63 * _TILE


def expert_blocks(experts: torch.Tensor, num_experts: int, size: int) -> ExpertBlocks:
    """Sort; see `jit_kernels.expert_blocks.expert_blocks`."""
    pairs = experts.numel()
    if not FEW_PAIRS < pairs <= _MAX_PAIRS or num_experts > _MAX_EXPERTS:
        return triton_backend.expert_blocks(experts, num_experts, size)
    ids = experts.contiguous()
    limit = block_limit(pairs, num_experts, size)
    places, chunk = limit * size, _whole(-(-pairs // MAX_CHUNKS), _TILE)
    chunks = -(-pairs // chunk)
    counts = chunks * _whole(num_experts, 2) // 2
    # One allocation; each part begins at a multiple of 16 bytes as far as blocks are that large.
    sizes = (places, places, pairs, -pairs % 4, counts, limit)
    memory = torch.empty(sum(sizes), dtype=torch.int32, device=ids.device)
    slots, member, place, _, counted, whose = memory.split(sizes)
    error = launched(
        ids.device,
        _library().expert_blocks_call,
        *(ids.data_ptr(), ids.dtype == torch.int64, counted.data_ptr()),
        *(slots.data_ptr(), whose.data_ptr(), member.data_ptr(), place.data_ptr()),
        *(pairs, chunk, chunks, num_experts, size.bit_length() - 1, limit),
    )
    if error:
        raise RuntimeError(f"expert_blocks: {_library().blocks_words(error).decode()}")
    return ExpertBlocks(slots, whose, member, place)


def _whole(count: int, unit: int) -> int:
    """Return the least multiple of `unit` that is no less than `count`."""
    return -(-count // unit) * unit


@functools.cache
def _library() -> ctypes.CDLL:
    library = load("expert_blocks", Path(__file__).parent / "cuda")
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.expert_blocks_call.argtypes = [
        *(pointer, number, pointer, pointer, pointer, pointer, pointer),
        *(number, number, number, number, number, number, pointer),
    ]
    library.blocks_words.restype = ctypes.c_char_p
    return library
