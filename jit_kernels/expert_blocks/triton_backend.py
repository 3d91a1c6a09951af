"""Blocks of pairs in one launch: every expert places its own.

A program for each expert makes the histogram of all experts, so that none waits for another, sums
up the blocks before its own, then goes over the pairs once more. One more program writes what
belongs to no expert. Its time grows with the pairs.
"""

import torch
import triton
import triton.language as tl

from jit_kernels.device_order import await_kernels, early
from jit_kernels.expert_blocks.blocks import ExpertBlocks, block_limit

CHUNK = 1024


@triton.jit
def _ids(
    experts_ptr: tl.tensor, first: tl.tensor, pairs: tl.tensor, CHUNK: tl.constexpr
) -> tl.tensor:
    """Return the numbers of a chunk of pairs, and their experts, -1 past the end."""
    pair = first + tl.arange(0, CHUNK)
    return pair, tl.load(experts_ptr + pair, mask=pair < pairs, other=-1).to(tl.int32)


@triton.jit
def _histogram(ids: tl.tensor, EXPERTS: tl.constexpr, BINS: tl.constexpr) -> tl.tensor:
    ours = (ids >= 0) & (ids < EXPERTS)
    return tl.histogram(tl.where(ours, ids, 0), BINS, mask=ours)


@triton.jit(do_not_specialize=["pairs", "limit"])
def _place_kernel(
    experts_ptr: tl.tensor, slots_ptr: tl.tensor, whose_ptr: tl.tensor, member_ptr: tl.tensor,
    place_ptr: tl.tensor, pairs: tl.tensor, limit: tl.tensor, EXPERTS: tl.constexpr,
    BINS: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr, EARLY: tl.constexpr,
) -> None:  # fmt: skip
    """Place the pairs of one expert."""
    await_kernels(EARLY)
    mine = tl.program_id(0)
    bins = tl.arange(0, BINS)
    counts = tl.zeros([BINS], tl.int32)
    first = pairs * 0
    while first < pairs:
        _, ids = _ids(experts_ptr, first, pairs, CHUNK)
        counts += _histogram(ids, EXPERTS, BINS)
        first += CHUNK
    blocks = (counts + (SIZE - 1)) // SIZE
    before = tl.sum(tl.where(bins < mine, blocks, 0))
    if mine == EXPERTS:
        _leftovers(
            experts_ptr, slots_ptr, whose_ptr, member_ptr, place_ptr, pairs, limit, before, EXPERTS,
            SIZE, CHUNK,
        )  # fmt: skip
    else:
        count = tl.sum(tl.where(bins == mine, counts, 0))
        seen, first = count * 0, pairs * 0
        while first < pairs:
            pair, ids = _ids(experts_ptr, first, pairs, CHUNK)
            hit = (ids == mine).to(tl.int32)
            at = before * SIZE + seen + tl.cumsum(hit, 0) - hit
            tl.store(slots_ptr + at, pair, mask=hit > 0)
            tl.store(member_ptr + at, hit * mine, mask=hit > 0)
            tl.store(place_ptr + pair, at, mask=hit > 0)
            seen += tl.sum(hit)
            first += CHUNK
        _last_block(slots_ptr, whose_ptr, member_ptr, before, count, mine, SIZE)


@triton.jit
def _last_block(
    slots_ptr: tl.tensor, whose_ptr: tl.tensor, member_ptr: tl.tensor, before: tl.tensor,
    count: tl.tensor, mine: tl.tensor, SIZE: tl.constexpr,
) -> None:  # fmt: skip
    """Write -1 to the rest of an expert's last block, and whose its blocks are."""
    used = (count + (SIZE - 1)) // SIZE
    at = (used - 1) * SIZE + tl.arange(0, SIZE)
    empty = (at >= count) & (used > 0)
    none = tl.full([SIZE], -1, tl.int32)
    tl.store(slots_ptr + before * SIZE + at, none, mask=empty)
    tl.store(member_ptr + before * SIZE + at, none, mask=empty)
    block = tl.arange(0, 32)
    while count > 0:
        tl.store(whose_ptr + before + block, block * 0 + mine, mask=block < used)
        block += 32
        count -= 32 * SIZE


@triton.jit
def _leftovers(
    experts_ptr: tl.tensor, slots_ptr: tl.tensor, whose_ptr: tl.tensor, member_ptr: tl.tensor,
    place_ptr: tl.tensor, pairs: tl.tensor, limit: tl.tensor, used: tl.tensor,
    EXPERTS: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
) -> None:  # fmt: skip
    """Write -1 to blocks past the last, and to pairs of other ranks."""
    none = tl.full([CHUNK], -1, tl.int32)
    first = used * SIZE
    while first < limit * SIZE:
        at = first + tl.arange(0, CHUNK)
        tl.store(slots_ptr + at, none, mask=at < limit * SIZE)
        tl.store(member_ptr + at, none, mask=at < limit * SIZE)
        first += CHUNK
    first = used
    while first < limit:
        block = first + tl.arange(0, CHUNK)
        tl.store(whose_ptr + block, none, mask=block < limit)
        first += CHUNK
    first = pairs * 0
    while first < pairs:
        pair, ids = _ids(experts_ptr, first, pairs, CHUNK)
        foreign = (ids < 0) | (ids >= EXPERTS)
        tl.store(place_ptr + pair, none, mask=foreign & (pair < pairs))
        first += CHUNK


def expert_blocks(experts: torch.Tensor, num_experts: int, size: int) -> ExpertBlocks:
    """Sort; see `jit_kernels.expert_blocks.expert_blocks`."""
    ids = experts.contiguous()
    pairs = ids.numel()
    limit = block_limit(pairs, num_experts, size)

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int32, device=ids.device)

    blocks = ExpertBlocks(empty(limit * size), empty(limit), empty(limit * size), empty(pairs))
    if not pairs:
        return blocks
    chunk = min(CHUNK, max(32, triton.next_power_of_2(pairs)))
    _place_kernel[(num_experts + 1,)](
        ids, *blocks, pairs, limit, EXPERTS=num_experts,
        BINS=max(32, triton.next_power_of_2(num_experts)), SIZE=size, CHUNK=chunk,
        num_warps=4 if chunk >= 128 else 1, **early(),
    )  # fmt: skip
    return blocks
