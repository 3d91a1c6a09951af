"""Keys of a tile of queries shared by several programs in Triton: who has which, and their sum."""

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import narrow
from jit_kernels.device_order import await_kernels, early
from jit_kernels.triton_launch import prepared

__all__ = ["combine_parts", "parts_of", "position_range"]

# Programs that keep a device busy, the most that share keys, and the fewest keys of one.
_ENOUGH, _MOST_PARTS, _FEWEST = 256, 32, 256


@triton.jit
def position_range(
    length: tl.tensor, last: tl.tensor, earliest: tl.tensor, part: tl.tensor, window: tl.tensor,
    PARTS: tl.constexpr, KEYS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return from where to where a part of the keys goes that tokens up to `last` read."""
    end = tl.minimum(length, last + 1)
    begin = tl.where(window > 0, tl.maximum(earliest + 1 - window, 0), 0) // KEYS * KEYS
    if PARTS == 1:
        return begin, end
    tiles = (end - begin + KEYS - 1) // KEYS
    each = (tiles + PARTS - 1) // PARTS * KEYS
    return begin + part * each, tl.minimum(end, begin + (part + 1) * each)


@triton.jit
def _combine_kernel(
    found_ptr: tl.tensor, sink_ptr: tl.tensor, out_ptr: tl.tensor, HEADS: tl.constexpr,
    WIDTH: tl.constexpr, SINK: tl.constexpr, PARTS: tl.constexpr, CHANNELS: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:  # fmt: skip
    """Add up the parts of one token's head, in order."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    place, channel = tl.program_id(0).to(tl.int64), tl.arange(0, CHANNELS)
    await_kernels(EARLY)
    found = found_ptr + place * PARTS * (CHANNELS + 2)
    every = tl.arange(0, PARTS) * (CHANNELS + 2) + CHANNELS
    highest = tl.max(tl.load(found + every), axis=0)
    if SINK:
        sink = tl.load(sink_ptr + place % HEADS).to(tl.float32) * LOG2_E
        highest = tl.maximum(highest, sink)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    total = tl.exp2(highest - base) * 0.0
    if SINK:
        total += tl.exp2(sink - base)
    sums = tl.zeros([CHANNELS], tl.float32)
    for part in tl.range(0, PARTS):
        at = found + part * (CHANNELS + 2)
        weight = tl.exp2(tl.load(at + CHANNELS) - base)
        total += weight * tl.load(at + CHANNELS + 1)
        sums += weight * tl.load(at + channel)
    read = sums / tl.where(total == 0.0, 1.0, total)
    out_at = out_ptr + place * WIDTH + channel
    tl.store(out_at, narrow(read, tl.bfloat16), mask=channel < WIDTH)


_combine = prepared(_combine_kernel)


def parts_of(tiles: int, longest: int) -> int:
    """Return how many programs share the keys of a tile, a power of two.

    longest  most keys that a tile may read
    """
    most = min(_MOST_PARTS, max(1, _ENOUGH // tiles), max(1, longest // _FEWEST))
    return 1 << (most.bit_length() - 1)


def combine_parts(
    found: torch.Tensor, sink: torch.Tensor | None, out: torch.Tensor, parts: int
) -> None:
    """Add up what `parts` programs found of each token's head, in their order.

    found  [T * H * parts, C + 2] float32   sums of C channels, the highest logit, and the total of
           the weights below it; logits are times log2(e)
    sink   [H] bfloat16, a logit without a value; None: there is none
    out    [T, H, D] bfloat16, written; D is at most C
    """
    tokens, heads, width = out.shape
    _combine[(tokens * heads,)](
        *(found, out if sink is None else sink, out),
        HEADS=heads,
        WIDTH=width,
        SINK=sink is not None,
        PARTS=parts,
        CHANNELS=found.shape[1] - 2,
        num_warps=4,
        **early(),
    )
