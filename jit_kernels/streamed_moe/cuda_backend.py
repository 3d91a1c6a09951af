"""Routed experts in CUDA C++: 4-bit weights, blocks of 8 or 16 rows; the rest is Triton's.

The sources are in `cuda`; they are compiled by nvcc at first use. Sorting and the last sum are
Triton's. Rows are multiplied 2^96 times too large, which is exact below 2^31 and lets the tensor
cores take the weights' bits as they are.

There are two kernels, which give the same bits: `units.cuh` for blocks of 8 rows of at most 4,096
channels, in parts as small as a warp takes; `stream.cuh` for all others. Choices of a single row
are not sorted: `units.cuh` takes them as they are, each as a block of its own.
"""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from jit_kernels.cuda_device import launched
from jit_kernels.cuda_library import load
from jit_kernels.expert_blocks import expert_blocks
from jit_kernels.expert_blocks.blocks import block_limit
from jit_kernels.expert_weights.forms import Fp4Experts, Fp8Experts
from jit_kernels.streamed_moe import triton_backend

# Channels that the kernels take at once, and the lines of weight that a block of threads takes.
_CHUNK, _UNIT_CHUNK, _LINES = 1024, 512, 256
_SIZES = (8, 16)
_SHIFT = 2.0**96
# Up to so many blocks of rows are shared out in smaller parts by `stream.cuh`.
FEW_BLOCKS = 24
# Up to so many blocks of 8 rows go through `units.cuh`; with 0 all go through `stream.cuh`.
UNIT_BLOCKS = 1024
_UNIT_DEPTH = 4096


class _Blocks(NamedTuple):
    """Blocks of pairs, as `ExpertBlocks` has them, or the choices of a single row.

    expert  whose block each is; of a single row ids of any experts, int32 or int64
    slots   None: a single row's
    place   None: every pair has one
    """

    expert: torch.Tensor
    slots: torch.Tensor | None
    place: torch.Tensor | None


def streamed_moe(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    parts: Fp8Experts | Fp4Experts,
    limit: float,
    added: Callable[[], torch.Tensor | None],
    out_dtype: torch.dtype,
    size: int,
) -> torch.Tensor:
    """Run the chosen experts; see `jit_kernels.streamed_moe.streamed_moe`."""
    count, width, inner = parts.sizes
    in_units = _in_units(experts.numel(), count, max(width, inner), size)
    chunk = _UNIT_CHUNK if in_units else _CHUNK
    if not isinstance(parts, Fp4Experts) or not experts.numel() or not _fits(parts, size, chunk):
        return triton_backend.streamed_moe(
            x, experts, weights, parts, limit, added, out_dtype, size
        )
    blocks = _blocks(experts, count, size, sort=not in_units or experts.shape[0] > 1)
    hidden = torch.empty((experts.numel(), inner), dtype=torch.bfloat16, device=x.device)
    outputs = torch.empty((experts.numel(), width), dtype=torch.float32, device=x.device)
    gate_up, down = (parts.gate_up, parts.gate_up_scales), (parts.down, parts.down_scales)
    if in_units:
        call = functools.partial(_multiply_units, blocks=blocks, count=count)
        call(_aligned(x), gate_up, out=hidden, share=experts.shape[1], limit=limit)
        call(hidden, down, out=outputs, share=1, limit=None)
    else:
        rows = (x * _SHIFT).contiguous()
        _multiply(rows, gate_up, blocks, hidden, share=experts.shape[1], limit=limit, size=size)
        _multiply(hidden, down, blocks, outputs, share=1, limit=None, size=size)
    return triton_backend.weighted_sum(
        outputs, blocks.place, weights, added(), out_dtype, in_order=False
    )


def _in_units(pairs: int, count: int, depth: int, size: int) -> bool:
    few = block_limit(pairs, count, size) <= UNIT_BLOCKS
    return size == _SIZES[0] and few and depth <= _UNIT_DEPTH


def _blocks(experts: torch.Tensor, count: int, size: int, *, sort: bool) -> _Blocks:
    if not sort:
        return _Blocks(experts.reshape(-1), None, None)
    blocks = expert_blocks(experts, count, size)
    return _Blocks(blocks.expert, blocks.slots, blocks.place)


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """Return rows that begin at multiples of 16 bytes, `x` itself if its rows do."""
    if x.stride(1) == 1 and not (x.stride(0) % 8 or x.data_ptr() % 16):
        return x
    return x.clone(memory_format=torch.contiguous_format)


def _fits(parts: Fp4Experts, size: int, chunk: int) -> bool:
    _, width, inner = parts.sizes
    weights = (parts.gate_up, parts.gate_up_scales, parts.down, parts.down_scales)
    return (
        size in _SIZES
        and not (width % chunk or inner % chunk or width % _LINES)
        and all(one.is_contiguous() and not one.data_ptr() % 16 for one in weights)
    )


def _multiply(
    rows: torch.Tensor,
    weight: tuple[torch.Tensor, torch.Tensor],
    blocks: _Blocks,
    out: torch.Tensor,
    *,
    share: int,
    limit: float | None,
    size: int,
) -> None:
    """Write the products of all pairs to `out`; gated if there is a limit of gates."""
    assert blocks.slots is not None
    count = blocks.expert.shape[0]
    error = launched(
        rows.device,
        _library().stream_experts_call,
        *(weight[0].data_ptr(), weight[1].data_ptr(), rows.data_ptr(), rows.stride(0)),
        *(blocks.slots.data_ptr(), blocks.expert.data_ptr(), out.data_ptr()),
        *(count, out.shape[1], rows.shape[1], share),
        0.0 if limit is None else limit,
        *(limit is not None, size, count <= FEW_BLOCKS, _processors(rows.device)),
    )
    if error:
        raise RuntimeError(f"streamed_moe: {_library().stream_words(error).decode()}")


def _multiply_units(
    rows: torch.Tensor,
    weight: tuple[torch.Tensor, torch.Tensor],
    *,
    blocks: _Blocks,
    out: torch.Tensor,
    count: int,
    share: int,
    limit: float | None,
) -> None:
    """Do what `_multiply` does for blocks of 8 rows, from rows as they are if gated.

    The launch before is waited for by the kernel; without gates it must be that with them, for
    where the pairs are is read before it has ended.

    count  of experts
    """
    slots, expert = blocks.slots, blocks.expert
    error = launched(
        rows.device,
        _library().stream_units_call,
        *(weight[0].data_ptr(), weight[1].data_ptr(), rows.data_ptr(), rows.stride(0)),
        *(None if slots is None else slots.data_ptr(), expert.data_ptr(), out.data_ptr()),
        *(expert.shape[0], out.shape[1], rows.shape[1], share),
        0.0 if limit is None else limit,
        *(limit is not None, count, expert.element_size() // 4, _processors(rows.device)),
    )
    if error:
        raise RuntimeError(f"streamed_moe: {_library().stream_words(error).decode()}")


@functools.cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def _library() -> ctypes.CDLL:
    library = load("stream_experts", Path(__file__).parent / "cuda")
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.stream_experts_call.argtypes = [
        *(pointer, pointer, pointer, ctypes.c_longlong, pointer, pointer, pointer),
        *(number, number, number, number, ctypes.c_float, number, number, number, number, pointer),
    ]
    library.stream_units_call.argtypes = [
        *(pointer, pointer, pointer, ctypes.c_longlong, pointer, pointer, pointer),
        *(number, number, number, number, ctypes.c_float, number, number, number, number, pointer),
    ]
    library.stream_words.restype = ctypes.c_char_p
    return library
