"""Blocks of 4 tokens, as the references after each other."""

from typing import TYPE_CHECKING

import torch

from jit_kernels.compress_kv.reference import pool_members
from jit_kernels.rms_norm.reference import rms_norm
from jit_kernels.rope.reference import rope
from jit_kernels.store_kv.reference import store_keys, store_records

if TYPE_CHECKING:
    from jit_kernels.compress_pool import BlockPages, ChunkTokens, EndedBlocks, StateSaves


def pool_tokens(
    rows: torch.Tensor,
    state: torch.Tensor,
    *,
    ape: torch.Tensor,
    position: torch.Tensor,
    ring: torch.Tensor,
    ended: "EndedBlocks",
    main: "BlockPages",
    index: "BlockPages",
    eps: float,
    record_format: str,
) -> None:
    """Advance decoding rows; see `jit_kernels.compress_pool.pool_tokens`."""
    span, flat = state.shape[1], state.view(-1, state.shape[2])
    first = ring.to(torch.int64) * span
    live = position >= 0
    mine = rows[live] + ape[position[live] % 4]
    flat[first[live] + position[live] % span] = mine
    ends = (live & (ended.slots > 0)).nonzero()[:, 0]
    place = position[ends].unsqueeze(1) + torch.arange(-7, 1, device=rows.device)
    members = (first[ends].unsqueeze(1) + place % span).masked_fill(place < 0, -1)
    _store(flat, members, ends, ended, main, index, eps, record_format)


def pool_chunks(
    rows: torch.Tensor,
    state: torch.Tensor,
    *,
    ape: torch.Tensor,
    tokens: "ChunkTokens",
    last: torch.Tensor,
    ended: "EndedBlocks",
    saves: "StateSaves",
    main: "BlockPages",
    index: "BlockPages",
    eps: float,
    record_format: str,
) -> None:
    """Advance chunks; see `jit_kernels.compress_pool.pool_chunks`."""
    span, flat = state.shape[1], state.view(-1, state.shape[2])
    count = tokens.ring.shape[0] * span
    known = torch.cat((state[tokens.ring.to(torch.int64)].flatten(0, 1), rows))
    known[count:] += ape[tokens.position % 4]
    ends = (ended.slots > 0).nonzero()[:, 0]
    token = last[ends].unsqueeze(1)
    back = torch.arange(-7, 1, device=rows.device)
    row, place = tokens.row[token], tokens.position[token] + back
    inside = place >= tokens.start[row]
    members = torch.where(inside, count + token + back, row * span + place % span)
    members = members.masked_fill(place < 0, -1)
    _store(known, members, ends, ended, main, index, eps, record_format)
    kept = saves.source >= 0
    flat[saves.target[kept]] = known[saves.source[kept]]


def _store(
    rows: torch.Tensor,
    members: torch.Tensor,
    ends: torch.Tensor,
    ended: "EndedBlocks",
    main: "BlockPages",
    index: "BlockPages",
    eps: float,
    record_format: str,
) -> None:
    """Pool, norm, rotate and store the blocks `ends` of `ended`."""
    slots, rotation = ended.slots[ends], ended.rotation[ends]
    width, key = main.weight.shape[0], index.weight.shape[0]
    blocks = pool_members(rows, members, 0, 2 * width, width)
    blocks = rms_norm(blocks, main.weight, eps, torch.float32)
    rope(blocks.unsqueeze(1), rotation, False)
    turned = rotation.shape[2]
    store_records(main.pages, slots, blocks, main.layout, record_format, turned)
    keys = pool_members(rows, members, 4 * width, 4 * width + 2 * key, key)
    keys = rms_norm(keys, index.weight, eps, torch.float32)
    rope(keys.unsqueeze(1), rotation, False)
    store_keys(index.pages, slots, keys, index.layout, record_format)
