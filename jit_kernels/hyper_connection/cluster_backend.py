"""Hyper-connections by clusters of blocks: streams are read once, and mixed where they lie.

The sources are in `cluster`; they are compiled by nvcc at first use. They take four bfloat16
streams, 16 bytes aligned, of 256 channels for each of 1, 2, 4, 8 or 16 blocks; other streams go
through the reference.

`fn` is read as `mix_rows` packs it, which takes a call longer whenever `fn` was written. The kernel
reads that before the launches before it have ended, unless it was packed now.

A token's bits do not depend on its company: how its channels are split and in which order they are
summed follows from their number alone.
"""

import ctypes
import functools
from pathlib import Path

import torch

from jit_kernels.cuda_device import launched
from jit_kernels.cuda_library import load
from jit_kernels.hyper_connection import reference
from jit_kernels.hyper_connection.mix_rows import packed_rows, ranks_of

__all__ = ["mhc_head", "mhc_post_pre_norm", "most_groups"]

_STREAMS, _TILE = 4, 16
# What rows and columns are divided by is a quarter of this and more, and the product of four such
# numbers is one of float32.
_LEAST_EPS = 1e-8


def mhc_post_pre_norm(
    y: torch.Tensor,
    streams: torch.Tensor,
    shares: torch.Tensor,
    *weights: torch.Tensor,
    iterations: int,
    norm_eps: float,
    hc_eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Do both in one launch; see `jit_kernels.hyper_connection.mhc_post_pre_norm`."""
    y, (fn, base, scale, weight) = y.contiguous(), weights
    fits = y.dtype == streams.dtype and hc_eps >= _LEAST_EPS
    if not fits or not _fits(streams, weight, y, shares):
        return reference.mhc_post_pre_norm(
            *(y, streams, shares, *weights), iterations=iterations, norm_eps=norm_eps, hc_eps=hc_eps
        )
    after = streams.new_empty(streams.shape)
    owed = y, shares, after
    fresh, eps = shares.new_empty(shares.shape), (norm_eps, hc_eps)
    mixed = _call(streams, (fn, base, scale), weight, eps, iterations, fresh, owed)
    return after, mixed, fresh


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
    if not _fits(streams):
        return reference.mhc_head(streams, fn, base, scale, norm_eps=norm_eps, hc_eps=hc_eps)
    return _call(streams, (fn, base, scale), None, (norm_eps, hc_eps), 0, None)


def _fits(streams: torch.Tensor, *others: torch.Tensor) -> bool:
    """Say whether the kernels take these streams, as they are laid out, on their device.

    others  what else is read or written 16 bytes at a time
    """
    ranks = ranks_of(streams.shape[2])
    return (
        streams.dtype == torch.bfloat16
        and streams.shape[0] > 0
        and streams.shape[1] == _STREAMS
        and ranks is not None
        and streams.stride(2) == 1
        # A tensor copy's tokens lie apart; its streams need not.
        and streams.stride(0) > 0
        and not any(stride % 8 for stride in streams.stride()[:2])
        and not any(x.data_ptr() % 16 for x in (streams, *others))
        and most_groups(streams.device, ranks) > 0
    )


def _call(
    streams: torch.Tensor,
    weights: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    norm: torch.Tensor | None,
    eps: tuple[float, float],
    iterations: int,
    shares: torch.Tensor | None,
    owed: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Return the mixed streams; write `shares`, which the head has none of.

    owed  what is first mixed into the streams: a result, its shares, and where new streams go
    """
    tokens, _, width = streams.shape
    ranks = ranks_of(width)
    assert ranks is not None
    (fn, base, scale), mixed = weights, streams.new_empty((tokens, width))
    rows, packed_now = packed_rows(fn, ranks)
    arguments = (
        *(streams.data_ptr(), streams.stride(0), streams.stride(1)),
        *((None,) * 3 if owed is None else (part.data_ptr() for part in owed)),
        *(tensor.data_ptr() for tensor in (rows, base, scale)),
        None if norm is None else norm.data_ptr(),
        mixed.data_ptr(),
        None if shares is None else shares.data_ptr(),
    )
    library = _library()
    groups = min(-(-tokens // _TILE), most_groups(streams.device, ranks))
    rest = (tokens, ranks, groups, iterations, not packed_now, *eps)
    error = launched(streams.device, library.mix_in_clusters_call, *arguments, *rest)
    if error:
        raise RuntimeError(f"mhc: {library.mix_in_clusters_words(error).decode()}")
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
        *(pointer, wide, wide, *[pointer] * 9),
        *([number] * 5),
        *(ctypes.c_float, ctypes.c_float, pointer),
    ]
    library.mix_in_clusters_words.restype = ctypes.c_char_p
    return library
