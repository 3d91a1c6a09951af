"""Hyper-connections by clusters of blocks: streams are read once, and mixed where they lie.

The sources are in `cluster`; they are compiled by nvcc at first use. They take four bfloat16
streams of up to 4,096 channels, a multiple of eight, 16 bytes aligned, or of 7,168. Others of up to
8,192 channels are multiplied in halves and mixed by a second launch, but for the head;
`cuda_backend` mixes the rest.

Where every block has as many channels, a multiple of 32, rows of `fn` are staged through shared
memory, and multipliers need not wait for each other. `STAGED` switches those kernels off, and
`WIDE` those for 7,168 channels at once.

A token's bits do not depend on its company: which kernel mixes it, how its channels are split and
in which order they are summed follows from their number alone.
"""

import ctypes
import functools
from pathlib import Path
from typing import NamedTuple

import torch

from jit_kernels.cuda_device import launched
from jit_kernels.cuda_library import load
from jit_kernels.hyper_connection import cuda_backend

__all__ = [
    "STAGED",
    "WIDE",
    "Split",
    "mhc_head",
    "mhc_pre",
    "mhc_pre_norm",
    "most_groups",
    "split",
]

STAGED = True
WIDE = True
_STREAMS, _TILE, _SLICE, _MOST_RANKS, _SUMS = 4, 16, 256, 16, 28
# Channels of one multiplier, and those of a block that are more than `_SLICE`.
_PIECE, _WIDE_SLICE = 32, 448


class Split(NamedTuple):
    """How blocks share channels: `halves` clusters of `ranks` blocks with `slice` channels each."""

    slice: int
    ranks: int
    halves: int


@functools.cache
def split(width: int, wide: bool = True) -> Split | None:
    """Return how blocks share `width` channels; None if these are too many.

    wide  whether blocks may have 448 channels each
    """
    if wide and width == _WIDE_SLICE * _MOST_RANKS:
        return Split(_WIDE_SLICE, _MOST_RANKS, 1)
    ranks = 1
    while ranks * _SLICE < width and ranks < _MOST_RANKS:
        ranks *= 2
    if ranks * _SLICE >= width:
        return Split(_SLICE, ranks, 1)
    size = -(-width // (2 * ranks * 8)) * 8
    return Split(size, ranks, 2) if size <= _SLICE else None


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
    groups = _groups_for(streams, fn, None)
    if not groups:
        return cuda_backend.mhc_pre(
            streams, *weights, iterations=iterations, norm_eps=norm_eps, hc_eps=hc_eps
        )
    gates, mixing = _gates(streams)
    return _call(groups, streams, weights, None, eps, iterations, gates, mixing), gates, mixing


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
    groups = _groups_for(streams, fn, weight)
    if not groups:
        return cuda_backend.mhc_pre_norm(
            streams, *weights, weight, iterations=iterations, norm_eps=norm_eps, hc_eps=hc_eps
        )
    gates, mixing = _gates(streams)
    return _call(groups, streams, weights, weight, eps, iterations, gates, mixing), gates, mixing


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
    groups = _groups_for(streams, fn, None)
    if not groups:
        return cuda_backend.mhc_head(streams, fn, base, scale, norm_eps=norm_eps, hc_eps=hc_eps)
    return _call(groups, streams, (fn, base, scale), None, (norm_eps, hc_eps), 0, None, None)


def _groups_for(streams: torch.Tensor, fn: torch.Tensor, norm: torch.Tensor | None) -> int:
    """Return how many clusters mix these streams, or pairs of them with half of the channels each.

    It is 0 where the kernel does not take them.
    """
    tokens, _, width = streams.shape
    how = split(width, WIDE)
    aligned = fn.data_ptr() % 16 == 0 and (norm is None or norm.data_ptr() % 16 == 0)
    if how is None or not tokens or not aligned or not cuda_backend.fits(streams):
        return 0
    if how.halves == 2 and fn.shape[0] == _STREAMS:
        return 0
    most = most_groups(streams.device, how.ranks)
    return min(-(-tokens // _TILE), most // how.halves or most)


def _gates(streams: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, count, _ = streams.shape
    post = streams.new_empty((tokens, count), dtype=torch.float32)
    return post, streams.new_empty((tokens, count, count), dtype=torch.float32)


def _call(
    groups: int,
    streams: torch.Tensor,
    weights: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    norm: torch.Tensor | None,
    eps: tuple[float, float],
    iterations: int,
    post: torch.Tensor | None,
    mixing: torch.Tensor | None,
) -> torch.Tensor:
    """Return the mixed streams; write `post` and `mixing`, which the head has none of."""
    fn, base, scale = (tensor.contiguous() for tensor in weights)
    norm = None if norm is None else norm.contiguous()
    tokens, _, width = streams.shape
    how = split(width, WIDE)
    assert how is not None
    mixed = streams.new_empty((tokens, width))
    sums = None
    if how.halves == 2:
        sums = streams.new_empty((tokens, 2, _SUMS), dtype=torch.float32)
    library = _library()
    error = launched(
        streams.device,
        library.mix_in_clusters_call,
        streams.data_ptr(),
        streams.stride(0),
        streams.stride(1),
        fn.data_ptr(),
        base.data_ptr(),
        scale.data_ptr(),
        None if norm is None else norm.data_ptr(),
        mixed.data_ptr(),
        None if post is None else post.data_ptr(),
        None if mixing is None else mixing.data_ptr(),
        None if sums is None else sums.data_ptr(),
        tokens,
        width,
        how.slice,
        how.ranks,
        groups,
        STAGED and how.slice % _PIECE == 0 and how.slice * how.ranks * how.halves == width,
        iterations,
        *eps,
    )
    if error:
        raise RuntimeError(f"mhc_pre: {library.mix_in_clusters_words(error).decode()}")
    return mixed


@functools.cache
def most_groups(device: torch.device, ranks: int) -> int:
    """Return how many clusters of `ranks` blocks a device holds at once."""
    with torch.cuda.device(device):
        return _library().mix_in_clusters_groups(ranks)


@functools.cache
def _library() -> ctypes.CDLL:
    library = load("mix_in_clusters", Path(__file__).parent / "cluster")
    pointer, number, wide = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
    library.mix_in_clusters_call.argtypes = [
        *(pointer, wide, wide, *[pointer] * 8),
        *([number] * 7),
        *(ctypes.c_float, ctypes.c_float, pointer),
    ]
    library.mix_in_clusters_words.restype = ctypes.c_char_p
    return library
