"""Attention over a workspace in Triton: a program takes up to 64 heads of one token.

Keys go from the workspace to shared memory as they are, and both products read them there.
Limits: one program fills a processor, softmax and products take turns, and both halves of its warps
make the same logits, since Triton gives the rows of a product that another one follows to all
warps, and there are only 64. On an H200 it has 0.52 to 0.54 of FlashMLA's speed.
"""

import functools

import torch
import triton
import triton.language as tl

from jit_kernels.cuda_device import HOPPER
from jit_kernels.device_numbers import INTERPRETED, narrow
from jit_kernels.paged_attention.triton_backend import (
    LOG2_E,
    NOTHING,
    fold_tile,
    product,
    share_of,
)

WARPS = 8


@triton.jit
def _fold(
    q: tl.tensor, greatest: tl.tensor, total: tl.tensor, o: tl.tensor, keys_ptr: tl.tensor,
    index_ptr: tl.tensor, first: tl.tensor, length: tl.tensor, scale: tl.tensor,
    HEADS: tl.constexpr, KEYS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Fold keys [first, first + KEYS) of a token's index into its sums."""
    place = first + tl.arange(0, KEYS)
    row = tl.load(index_ptr + place, mask=place < length, other=-1)
    found = row >= 0
    keys_at = keys_ptr + row.to(tl.int64)[:, None] * 512 + tl.arange(0, 512)[None, :]
    keys = tl.load(keys_at, mask=found[:, None], other=0.0)
    if INTERPRETED:
        keys = keys.to(tl.float32)
    logits = product(q, tl.trans(keys), tl.zeros([HEADS, KEYS], tl.float32))
    p, factor, greatest, total = fold_tile(logits * scale, found, greatest, total)
    return greatest, total, product(p.to(keys.dtype), keys, o * factor[:, None])


@triton.jit
def _kernel(
    q_ptr: tl.tensor, q_token: tl.tensor, keys_ptr: tl.tensor, index_ptr: tl.tensor,
    index_token: tl.tensor, lengths_ptr: tl.tensor, columns: tl.tensor, sink_ptr: tl.tensor,
    out_ptr: tl.tensor, heads: tl.tensor, scale: tl.tensor, HAS_LENGTHS: tl.constexpr,
    HEADS: tl.constexpr, KEYS: tl.constexpr, LOG2_E: tl.constexpr,
) -> None:  # fmt: skip
    """Attend with some heads of one token over its keys."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    column = tl.arange(0, 512)
    live = (head < heads)[:, None]
    q_at = q_ptr + token * q_token + head[:, None] * 512 + column[None, :]
    q = tl.load(q_at, mask=live, other=0.0)
    if INTERPRETED:
        q = q.to(tl.float32)
    length = columns
    if HAS_LENGTHS:
        length = tl.minimum(tl.load(lengths_ptr + token), columns)
    greatest = tl.full([HEADS], NOTHING, tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    o = tl.zeros([HEADS, 512], tl.float32)
    index_ptr += token * index_token
    if INTERPRETED:
        # The interpreter counts no loop whose bounds are computed.
        first = length * 0
        while first < length:
            greatest, total, o = _fold(
                q, greatest, total, o, keys_ptr, index_ptr, first, length, scale, HEADS, KEYS
            )
            first += KEYS
    else:
        for first in range(0, length, KEYS):
            greatest, total, o = _fold(
                q, greatest, total, o, keys_ptr, index_ptr, first, length, scale, HEADS, KEYS
            )
    sink = tl.load(sink_ptr + head, mask=head < heads, other=0.0) * LOG2_E
    o = o / share_of(total, greatest, sink)[:, None]
    at = out_ptr + (token * heads + head)[:, None] * 512 + column[None, :]
    tl.store(at, narrow(o, out_ptr.dtype.element_ty), mask=live)


def sparse_prefill(
    q: torch.Tensor,
    keys: torch.Tensor,
    index: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """Attend; see `jit_kernels.sparse_prefill.sparse_prefill`."""
    q = q if q.stride(2) == 1 and q.stride(1) == q.shape[2] else q.contiguous()
    tokens, heads, _ = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not out.numel():
        return out
    block = min(64, max(16, triton.next_power_of_2(heads)))
    keys_of_tile, stages = _tile(q.device)
    _kernel[(tokens, triton.cdiv(heads, block))](
        *(q, q.stride(0), keys, index, index.stride(0), index if lengths is None else lengths),
        *(index.shape[1], sink, out, heads, scale * LOG2_E),
        HAS_LENGTHS=lengths is not None,
        HEADS=block,
        KEYS=keys_of_tile,
        LOG2_E=LOG2_E,
        num_warps=WARPS,
        num_stages=stages,
    )
    return out


@functools.cache
def _tile(device: torch.device) -> tuple[int, int]:
    """Return the keys of a tile, and the stages of its loads.

    Products read the queries once a tile, which on Hopper is what they wait for: the larger tile is
    a third faster, though the next one is only asked for when it is multiplied. Other devices have
    no room for it beside the queries.
    """
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == HOPPER:
        return 64, 2
    return 32, 5
