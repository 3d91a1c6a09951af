"""Hyper-connections in CUDA C++: streams are read once, and mixed where they lie on the chip.

The sources are in `cuda`; they are compiled by nvcc at first use. They take four bfloat16 streams
of up to 8,192 channels, a multiple of eight, 16 bytes aligned; other streams go through Triton.

A token's bits do not depend on its company: channels are summed in the same order however many
blocks share them.
"""

import ctypes
import functools
from pathlib import Path
from typing import NamedTuple

import torch

from jit_kernels.cuda_device import launched
from jit_kernels.cuda_library import load
from jit_kernels.hyper_connection import triton_backend

__all__ = ["Plan", "fits", "mhc_head", "mhc_pre", "mhc_pre_norm", "plan"]

_STREAMS, _TILE = 4, 16
# Channels of a block: what its registers hold of `fn`; a worker multiplies 32.
_WORKER, _MOST = 32, 256
_MAX_RANKS = 32


class Plan(NamedTuple):
    """How blocks share the work: `ranks` of them have `slice` channels each of a tile's tokens."""

    slice: int
    ranks: int
    groups: int


def plan(tokens: int, width: int, blocks: int) -> Plan | None:
    """Return how `blocks` blocks mix streams of `width` channels; None if they are too wide.

    Few tokens take twice the ranks where that adds up in the same order: halves of 256 and 128.
    """
    sizes = [size for size in range(_MOST, 0, -_WORKER) if -(-width // size) <= _MAX_RANKS]
    sizes = [size for size in sizes if -(-width // size) <= blocks]
    if not sizes:
        return None
    size = min(sizes, key=lambda size: size / (blocks // -(-width // size)))
    tiles = -(-tokens // _TILE)
    ranks = -(-width // size)
    while (
        size in (256, 128)
        and width % size == 0
        and 2 * ranks <= _MAX_RANKS
        and 2 * ranks * tiles <= blocks
    ):
        size, ranks = size // 2, 2 * ranks
    return Plan(size, ranks, min(tiles, blocks // ranks))


def mhc_pre(
    streams: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    *,
    iterations: int,
    norm_eps: float,
    hc_eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mix streams into a block input; see `jit_kernels.hyper_connection.mhc_pre`."""
    weights, eps = (fn, base, scale), (norm_eps, hc_eps)
    mixed = _call(streams, weights, None, eps, iterations)
    return mixed or triton_backend.mhc_pre(
        streams, *weights, iterations=iterations, norm_eps=norm_eps, hc_eps=hc_eps
    )


def mhc_pre_norm(
    streams: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor,
    *,
    iterations: int,
    norm_eps: float,
    hc_eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mix streams and norm the result; see `jit_kernels.hyper_connection.mhc_pre_norm`."""
    weights, eps = (fn, base, scale), (norm_eps, hc_eps)
    mixed = _call(streams, weights, weight, eps, iterations)
    return mixed or triton_backend.mhc_pre_norm(
        streams, *weights, weight, iterations=iterations, norm_eps=norm_eps, hc_eps=hc_eps
    )


def mhc_head(
    streams: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    *,
    norm_eps: float,
    hc_eps: float,
) -> torch.Tensor:
    """Mix streams into one; see `jit_kernels.hyper_connection.mhc_head`."""
    mixed = _call(streams, (fn, base, scale), None, (norm_eps, hc_eps), 0)
    if mixed is not None:
        return mixed[0]
    return triton_backend.mhc_head(streams, fn, base, scale, norm_eps=norm_eps, hc_eps=hc_eps)


def _call(
    streams: torch.Tensor,
    weights: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    norm: torch.Tensor | None,
    eps: tuple[float, float],
    iterations: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Run the kernel, or return None for streams it does not take; `iterations` 0 is the head."""
    fn, base, scale = (tensor.contiguous() for tensor in weights)
    norm = None if norm is None else norm.contiguous()
    tokens, count, width = streams.shape
    blocks = _blocks(streams.device)
    how = plan(tokens, width, blocks)
    aligned = all(tensor.data_ptr() % 16 == 0 for tensor in (fn, fn if norm is None else norm))
    if how is None or not tokens or not aligned or not fits(streams):
        return None
    mixed = streams.new_empty((tokens, width))
    gates = (tokens if iterations else 0, count)
    post = streams.new_empty(gates, dtype=torch.float32)
    mixing = streams.new_empty((*gates, count), dtype=torch.float32)
    library = _library()
    error = launched(
        streams.device,
        library.mix_streams_call,
        *(streams.data_ptr(), streams.stride(0), streams.stride(1)),
        *(fn.data_ptr(), base.data_ptr(), scale.data_ptr()),
        None if norm is None else norm.data_ptr(),
        *(mixed.data_ptr(), post.data_ptr()),
        mixing.data_ptr() if iterations else None,
        _scratch(streams.device).data_ptr(),
        *(tokens, width, *how, iterations, *eps),
    )
    if error:
        raise RuntimeError(f"mhc_pre: {library.mix_streams_words(error).decode()}")
    return mixed, post, mixing


def fits(streams: torch.Tensor) -> bool:
    """Say whether streams are laid out as the kernels take them, however wide."""
    return (
        streams.dtype == torch.bfloat16
        and streams.shape[1] == _STREAMS
        and streams.stride(2) == 1
        and not any(size % 8 for size in (streams.shape[2], *streams.stride()[:2]))
        and streams.data_ptr() % 16 == 0
    )


@functools.cache
def _blocks(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def _library() -> ctypes.CDLL:
    library = load("mix_streams", Path(__file__).parent / "cuda")
    pointer, number, wide = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
    library.mix_streams_call.argtypes = [
        *(pointer, wide, wide, *[pointer] * 8),
        *([number] * 6),
        *(ctypes.c_float, ctypes.c_float, pointer),
    ]
    library.mix_streams_scratch_bytes.argtypes = [number]
    library.mix_streams_scratch_bytes.restype = wide
    library.mix_streams_words.restype = ctypes.c_char_p
    return library


@functools.cache
def _scratch(device: torch.device) -> torch.Tensor:
    """Return what blocks tell each other through; calls share a stream."""
    size = _library().mix_streams_scratch_bytes(_blocks(device))
    return torch.zeros(size, dtype=torch.uint8, device=device)
