"""Rows of `fn` as clusters of blocks read them: two bytes a number.

A launch of few tokens waits for the rows more than for its streams. A byte below 128 stands for
128 more than itself, another for twice itself: what bfloat16 makes of it in two instructions. 320,
their middle, is taken off. Of the two bytes of a number the first counts in units, a power of two
for each line of a multiplier's channels, the second in parts of a unit, for what the first leaves.

Numbers differ by 2e-5 of the largest of their line and multiplier (root mean square), logits of
order one by 6e-5, 2.4e-4 at most of 12,000; by two bfloat16 parts these would differ by 2.5e-6, in
TF32, which DeepGEMM multiplies such rows in (`tf32_hc_prenorm_gemm`), by 2.1e-4 rounded.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["by_products", "pack", "packed_rows", "ranks_of"]

_STREAMS, _MULTIPLIERS = 4, 8
# Channels of a block, and how many blocks may share those of all.
_SLICE, _RANKS = 256, (1, 2, 4, 8, 16)
_MIDDLE, _MOST = 320.0, 190.0
# Of a unit: what a first byte leaves is 191 of these at most, and 320 are a bfloat16 number.
_LOW = 43 / 8192
# A unit, and a second byte's part of it, are normal numbers.
_LEAST_EXPONENT = -100


# How often a tensor had been written when its rows were packed, and these.
_packed = WeakTensorKeyDictionary()


def ranks_of(width: int) -> int | None:
    """Return how many blocks share `width` channels; None if no kernel takes so many."""
    return next((ranks for ranks in _RANKS if ranks * _SLICE == width), None)


def packed_rows(fn: Tensor, ranks: int) -> tuple[Tensor, bool]:
    """Return `pack(fn, ranks)`, and whether it was packed now: when `fn` was written, or is new.

    The rows of a tensor stay in one place, where graphs find them, for as long as the tensor lives.
    Of a tensor that was made in inference mode they are packed each time.
    """
    before: tuple[int, Tensor] | None = _packed.get(fn)
    version = None if fn.is_inference() else fn._version
    if before is not None and before[0] == version:
        return before[1], False
    if version is None or (fn.is_cuda and torch.cuda.is_current_stream_capturing()):
        # Nobody counts how often it is written; or rows are there when a graph is replayed.
        return pack(fn, ranks), True
    # What is made in inference mode could not be written outside of it.
    with torch.inference_mode(False), torch.no_grad():
        rows = pack(fn, ranks) if before is None else before[1].copy_(pack(fn, ranks))
    _packed[fn] = version, rows
    return rows, True


def pack(fn: Tensor, ranks: int) -> Tensor:
    """Return rows as a cluster's blocks read them, [ranks, 8, words] int32.

    fn  [R, 4 d] float32, R up to 24; a line of a multiplier that is not finite becomes NaN

    For each block and multiplier: of each four times eight lines of 16 channels, for 32 lanes, four
    words of first bytes, then as many of second ones; after all, for each line of an eight, the
    units, a word for each eight and one that is free. A lane has four channels of a line, two, and
    the two that are eight after these.
    """
    numbers = by_products(fn, ranks)
    units = _units(numbers)
    high, rest = _code(numbers / units)
    low, _ = _code(rest / _LOW)
    # Of blocks, multipliers, products and eights: both bytes, lines, a line's lanes, four channels.
    codes = torch.stack((high, low), 4).unflatten(-1, (2, 4, 2)).transpose(-3, -2)
    groups = codes.flatten(-2).flatten(2, 3)
    words = groups.unflatten(2, (-1, 4)).permute(0, 1, 2, 4, 5, 6, 3, 7).flatten(2)
    of_lines = units[:, :, 0, :, :, 0].transpose(2, 3)
    pairs = pad(of_lines, (0, 4 - of_lines.shape[3])).bfloat16().repeat_interleave(2, 3).flatten(2)
    return torch.cat((words.contiguous().view(torch.int32), pairs.view(torch.int32)), 2)


def _units(numbers: Tensor) -> Tensor:
    """Return powers of two of which the largest of each line and multiplier has 190 at most."""
    largest = numbers.abs().amax((2, 5), keepdim=True)
    exponents = torch.frexp(largest / _MOST).exponent.clamp(min=_LEAST_EXPONENT)
    units = torch.ldexp(torch.ones_like(largest), exponents)
    return torch.where(largest.isfinite(), units, torch.nan)


def _code(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the byte that is next to each number, and what it leaves of it."""
    near = torch.where(x < 256 - _MIDDLE, x + (_MIDDLE - 128), (x + _MIDDLE) / 2)
    code = near.round().clamp(0, 255).nan_to_num()
    return code.to(torch.uint8), x - (torch.where(code < 128, code + 128, 2 * code) - _MIDDLE)


def by_products(values: Tensor, ranks: int) -> Tensor:
    """Return [R, 4 d] values as [ranks, 8, products, eights, 8, 16]; lines are filled up with 0.

    Of each stream a multiplier has 32 channels.
    """
    lines = pad(values, (0, 0, 0, -len(values) % 8))
    streams = lines.unflatten(1, (_STREAMS, ranks, _MULTIPLIERS, -1, 16))
    parts = streams.permute(2, 3, 1, 4, 0, 5).flatten(2, 3)
    return parts.unflatten(3, (-1, 8))
