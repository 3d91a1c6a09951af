"""Streams mixed into one in Triton: each function is one launch.

The kernel runs three kinds of programs in one grid. Products multiply a tile of tokens by a slice
of `fn`; mixes wait for the products of their tile and mix one token each, while its streams are
still in the L2 cache; Sinkhorns do the same for the matrices of eight tokens. A program waits only
for programs before it in the grid, which the device starts in that order.

`fn` is multiplied as three bfloat16 parts, 24 bits together, so that products of bfloat16 streams
are as exact as in float32. A token's bits do not depend on its company: splits and order of sums
follow from the width alone.
"""

import functools

import torch
import triton
import triton.language as tl

from jit_kernels.checks import ShapeError
from jit_kernels.device_numbers import INTERPRETED, narrow
from jit_kernels.hyper_connection.reference import in_turn
from jit_kernels.hyper_connection.triton_post import check_streams, mhc_post

# Tokens a Sinkhorn program takes; tokens between the products of a tile and its mixes.
MATRICES = 8
LAG_TOKENS = 512
# Tokens whose products one program makes.
TILE = 64
_FLAGS = 65536


@triton.jit
def _line(N: tl.constexpr, GROUPS: tl.constexpr) -> tl.tensor:
    """Return row of `fn` and validity of 32 lines: eight groups of four members, N of them used."""
    line = tl.arange(0, 32)
    group, member = line // 4, line % 4
    return group * N + member, (group < GROUPS) & (member < N)


@triton.jit
def _multiply(
    x_ptr: tl.tensor, x_token: tl.tensor, x_stream: tl.tensor, fn_ptr: tl.tensor,
    sums_ptr: tl.tensor, tile: tl.tensor, split: tl.tensor, tokens: tl.tensor, width: tl.tensor,
    N: tl.constexpr, GROUPS: tl.constexpr, TILE: tl.constexpr, SLICE: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:  # fmt: skip
    """Write the part of a tile's logits, and of its squares, that one slice of channels gives."""
    row = tile * TILE + tl.arange(0, TILE)
    HALVES: tl.constexpr = 2
    PIECE: tl.constexpr = SLICE // 2
    column = split * SLICE + tl.arange(0, PIECE)
    fn_row, used = _line(N, GROUPS)
    logits = tl.zeros([TILE, 32], tl.float32)
    squares = tl.zeros([TILE], tl.float32)
    x_at = x_ptr + row.to(tl.int64)[:, None] * x_token + column[None, :]
    fn_at = fn_ptr + fn_row[:, None] * (N * width) + column[None, :]
    x_mask = (row < tokens)[:, None] & (column < width)[None, :]
    f_mask = used[:, None] & (column < width)[None, :]
    x = tl.load(x_at, mask=x_mask, other=0.0)
    f = tl.load(fn_at, mask=f_mask, other=0.0)
    for piece in range(1, N * HALVES + 1):
        # The next piece is on the way while this one is multiplied.
        stream, start = piece // HALVES, piece % HALVES * PIECE
        live = (piece < N * HALVES) & (column + start < width)[None, :]
        at = x_at + stream * x_stream + start
        next_x = tl.load(at, mask=(row < tokens)[:, None] & live, other=0.0)
        next_f = tl.load(fn_at + stream * width + start, mask=used[:, None] & live, other=0.0)
        wide = x.to(tl.float32)
        squares += tl.sum(wide * wide, 1)
        if INTERPRETED:
            logits += tl.dot(wide, tl.trans(f), input_precision="ieee")
        elif x.dtype == tl.bfloat16:
            high = f.to(tl.bfloat16)
            f -= high.to(tl.float32)
            middle = f.to(tl.bfloat16)
            low = (f - middle.to(tl.float32)).to(tl.bfloat16)
            logits = tl.dot(x, tl.trans(low), logits)
            logits = tl.dot(x, tl.trans(middle), logits)
            logits = tl.dot(x, tl.trans(high), logits)
        else:
            logits = tl.dot(wide, tl.trans(f), logits, input_precision="tf32x3")
        x, f = next_x, next_f
    line = tl.arange(0, 32)
    logits = tl.where(line[None, :] == 31, squares[:, None], logits)
    at = sums_ptr + (row.to(tl.int64) * SPLITS + split)[:, None] * 32 + line[None, :]
    tl.store(at, logits, mask=(row < tokens)[:, None])


@triton.jit
def _arrive(flag_ptr: tl.tensor) -> None:
    """Say that this program's part of the tile is written."""
    tl.debug_barrier()
    tl.atomic_add(flag_ptr, 1, sem="release")


@triton.jit
def _await(flag_ptr: tl.tensor, readers: tl.tensor, SPLITS: tl.constexpr) -> None:
    """Wait until all parts of the tile are written; its last reader leaves the flag at zero."""
    while tl.atomic_add(flag_ptr, 0, sem="acquire") < SPLITS:
        pass
    if tl.atomic_add(flag_ptr, 1, sem="relaxed") == SPLITS + readers - 1:
        tl.atomic_xchg(flag_ptr, 0, sem="relaxed")
    tl.debug_barrier()


@triton.jit
def _gain_and_base(
    base_ptr: tl.tensor, scale_ptr: tl.tensor, N: tl.constexpr, GROUPS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return what each line is multiplied by and what is added to it."""
    fn_row, used = _line(N, GROUPS)
    group = tl.arange(0, 32) // 4
    gain = tl.load(scale_ptr + tl.minimum(group, 2), mask=used, other=0.0)
    return gain, tl.load(base_ptr + fn_row, mask=used, other=0.0)


@triton.jit
def _logits(
    sums: tl.tensor, gain: tl.tensor, base: tl.tensor, size: tl.tensor, norm_eps: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """Return the logits of tokens, [M, 32], from their summed parts [M, 32]."""
    line = tl.arange(0, 32)
    squares = tl.sum(tl.where(line[None, :] == 31, sums, 0.0), 1)
    factor = tl.rsqrt(squares / size + norm_eps)
    return sums * factor[:, None] * gain[None, :] + base[None, :]


@triton.jit
def _mix(
    x_ptr: tl.tensor, x_token: tl.tensor, x_stream: tl.tensor, base_ptr: tl.tensor,
    scale_ptr: tl.tensor, weight_ptr: tl.tensor, sums_ptr: tl.tensor, flag_ptr: tl.tensor,
    readers: tl.tensor, mixed_ptr: tl.tensor, shares_ptr: tl.tensor, token: tl.tensor,
    width: tl.tensor, norm_eps: tl.tensor, hc_eps: tl.tensor, N: tl.constexpr, GROUPS: tl.constexpr,
    NORM: tl.constexpr, WIDTH: tl.constexpr, SPLITS: tl.constexpr, PARTS: tl.constexpr,
) -> None:  # fmt: skip
    """Mix the streams of one token, norm the result if asked, write the result's shares."""
    column = tl.arange(0, WIDTH)
    inside = column < width
    at = x_ptr + token.to(tl.int64) * x_token + column
    # The streams need no logits: their loads are on the way while the program waits.
    x0 = tl.load(at, mask=inside, other=0.0)
    x1 = tl.load(at + x_stream, mask=inside & (N > 1), other=0.0)
    x2 = tl.load(at + 2 * x_stream, mask=inside & (N > 2), other=0.0)
    x3 = tl.load(at + 3 * x_stream, mask=inside & (N > 3), other=0.0)
    gain, base = _gain_and_base(base_ptr, scale_ptr, N, GROUPS)
    _await(flag_ptr, readers, SPLITS)
    line, part = tl.arange(0, 32), tl.arange(0, PARTS)
    sums_at = sums_ptr + token.to(tl.int64) * (SPLITS * 32) + part[:, None] * 32 + line[None, :]
    sums = tl.load(sums_at, mask=(part < SPLITS)[:, None], other=0.0)
    sums = tl.sum(sums, 0)[None, :]
    z = tl.sum(_logits(sums, gain, base, N * width, norm_eps), 0)
    gate = 1.0 / (1.0 + tl.exp(-z))
    mixed = x0.to(tl.float32) * (tl.sum(tl.where(line == 0, gate, 0.0), 0) + hc_eps)
    mixed += x1.to(tl.float32) * (tl.sum(tl.where(line == 1, gate, 0.0), 0) + hc_eps)
    mixed += x2.to(tl.float32) * (tl.sum(tl.where(line == 2, gate, 0.0), 0) + hc_eps)
    mixed += x3.to(tl.float32) * (tl.sum(tl.where(line == 3, gate, 0.0), 0) + hc_eps)
    result = narrow(mixed, mixed_ptr.dtype.element_ty)
    if NORM:
        wide = result.to(tl.float32)
        factor = tl.rsqrt(tl.sum(wide * wide, 0) / width + norm_eps)
        weight = tl.load(weight_ptr + column, mask=inside, other=0.0)
        result = narrow(wide * factor * weight, mixed_ptr.dtype.element_ty)
    tl.store(mixed_ptr + token.to(tl.int64) * width + column, result, mask=inside)
    if GROUPS > 1:
        mine = (line >= 4) & (line < 4 + N)
        shares = shares_ptr + (token.to(tl.int64) * (N + 1) + N) * N
        tl.store(shares + line - 4, 2.0 * gate, mask=mine)


@triton.jit
def _sinkhorn(
    base_ptr: tl.tensor, scale_ptr: tl.tensor, sums_ptr: tl.tensor, flag_ptr: tl.tensor,
    readers: tl.tensor, shares_ptr: tl.tensor, first: tl.tensor, tokens: tl.tensor,
    width: tl.tensor, norm_eps: tl.tensor, hc_eps: tl.tensor, N: tl.constexpr, GROUPS: tl.constexpr,
    ITERATIONS: tl.constexpr, COUNT: tl.constexpr, SPLITS: tl.constexpr, PARTS: tl.constexpr,
) -> None:  # fmt: skip
    """Write the matrices of COUNT tokens: rows are the groups from the third on."""
    gain, base = _gain_and_base(base_ptr, scale_ptr, N, GROUPS)
    _await(flag_ptr, readers, SPLITS)
    token, part = first + tl.arange(0, COUNT), tl.arange(0, PARTS)
    line = tl.arange(0, 32)
    offset = (token.to(tl.int64) * SPLITS)[None, :, None] + part[:, None, None]
    known = (token < tokens)[None, :, None] & (part < SPLITS)[:, None, None]
    sums = tl.sum(tl.load(sums_ptr + offset * 32 + line[None, None, :], mask=known, other=0.0), 0)
    z = _logits(sums, gain, base, N * width, norm_eps)
    z = tl.reshape(z, [COUNT, 8, 4])
    group, member = tl.arange(0, 8)[None, :, None], tl.arange(0, 4)[None, None, :]
    used = (group >= 2) & (group < 2 + N) & (member < N)
    z = tl.where(used, z, -1e30)
    a = tl.where(used, tl.exp(z - tl.max(z, 2, keep_dims=True)), 0.0)
    a = tl.where(used, a / tl.where(used, tl.sum(a, 2, keep_dims=True), 1.0) + hc_eps, 0.0)
    a = tl.where(used, a / (tl.sum(a, 1, keep_dims=True) + hc_eps), 0.0)
    for _ in range(ITERATIONS - 1):
        a = tl.where(used, a / (tl.sum(a, 2, keep_dims=True) + hc_eps), 0.0)
        a = tl.where(used, a / (tl.sum(a, 1, keep_dims=True) + hc_eps), 0.0)
    shares = shares_ptr + (token.to(tl.int64) * (N + 1) * N)[:, None, None]
    at = shares + (group - 2) * N + member
    tl.store(at, a, mask=used & (token < tokens)[:, None, None])


@triton.jit(do_not_specialize=["tokens", "lag"])
def _pre_kernel(
    x_ptr: tl.tensor, x_token: tl.tensor, x_stream: tl.tensor, fn_ptr: tl.tensor,
    base_ptr: tl.tensor, scale_ptr: tl.tensor, weight_ptr: tl.tensor, sums_ptr: tl.tensor,
    flags_ptr: tl.tensor, mixed_ptr: tl.tensor, shares_ptr: tl.tensor,
    tokens: tl.tensor, width: tl.tensor, lag: tl.tensor, norm_eps: tl.tensor, hc_eps: tl.tensor,
    N: tl.constexpr, GROUPS: tl.constexpr, ITERATIONS: tl.constexpr, NORM: tl.constexpr,
    TILE: tl.constexpr, SLICE: tl.constexpr, SPLITS: tl.constexpr, PARTS: tl.constexpr,
    WIDTH: tl.constexpr, COUNT: tl.constexpr,
) -> None:  # fmt: skip
    SINKHORNS: tl.constexpr = TILE // COUNT if GROUPS > 1 else 0
    PROGRAMS: tl.constexpr = SPLITS + TILE + SINKHORNS
    step = tl.program_id(0) // PROGRAMS
    role = tl.program_id(0) % PROGRAMS
    if role < SPLITS:
        if step * TILE < tokens:
            _multiply(
                x_ptr, x_token, x_stream, fn_ptr, sums_ptr, step, role, tokens, width,
                N, GROUPS, TILE, SLICE, SPLITS,
            )  # fmt: skip
            _arrive(flags_ptr + step)
    elif step >= lag:
        tile = step - lag
        live = tl.minimum(tokens - tile * TILE, TILE)
        readers = live
        if GROUPS > 1:
            readers += (live + COUNT - 1) // COUNT
        role -= SPLITS
        if role < live:
            _mix(
                x_ptr, x_token, x_stream, base_ptr, scale_ptr, weight_ptr, sums_ptr,
                flags_ptr + tile, readers, mixed_ptr, shares_ptr, tile * TILE + role, width,
                norm_eps, hc_eps, N, GROUPS, NORM, WIDTH, SPLITS, PARTS,
            )  # fmt: skip
        elif GROUPS > 1:
            first = (role - TILE) * COUNT
            if (first >= 0) & (first < live):
                _sinkhorn(
                    base_ptr, scale_ptr, sums_ptr, flags_ptr + tile, readers, shares_ptr,
                    tile * TILE + first, tokens, width, norm_eps, hc_eps,
                    N, GROUPS, ITERATIONS, COUNT, SPLITS, PARTS,
                )  # fmt: skip


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
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mix streams into a block's input, norm it, and return it and the shares of the result."""
    return _pre(streams, (fn, base, scale), weight, (norm_eps, hc_eps), iterations)


mhc_post_pre_norm = in_turn(mhc_post, mhc_pre_norm)


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
    return _pre(streams, (fn, base, scale), None, (norm_eps, hc_eps), 0)[0]


def _pre(
    streams: torch.Tensor,
    weights: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    norm: torch.Tensor | None,
    eps: tuple[float, float],
    iterations: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the kernel; `iterations` 0 is the head, whose `fn` has rows for the gates alone."""
    check_streams(streams)
    tokens, count, width = streams.shape
    head = iterations == 0
    mixed = streams.new_empty((tokens, width))
    sizes = (0 if head else tokens, count + 1, count)
    shares = streams.new_empty(sizes, dtype=torch.float32)
    if not tokens:
        return mixed, shares
    tile = TILE
    piece = min(128, max(32, triton.next_power_of_2(width)))
    splits, tiles = triton.cdiv(width, piece), triton.cdiv(tokens, tile)
    if tiles > _FLAGS:
        raise ShapeError(f"streams has {tokens} tokens, at most {_FLAGS * tile} in one call")
    wide = width > 4096
    lag = min(tiles, LAG_TOKENS // tile)
    sums = streams.new_empty((tokens, splits, 32), dtype=torch.float32)
    programs = splits + tile + (0 if head else tile // MATRICES)
    fn, base, scale = (tensor.contiguous() for tensor in weights)
    _pre_kernel[((tiles + lag) * programs,)](
        streams,
        streams.stride(0),
        streams.stride(1),
        fn,
        base,
        scale,
        base if norm is None else norm.contiguous(),
        sums,
        _flags(streams.device),
        mixed,
        shares,
        tokens,
        width,
        lag,
        eps[0],
        eps[1],
        N=count,
        GROUPS=1 if head else 2 + count,
        ITERATIONS=iterations,
        NORM=norm is not None,
        TILE=tile,
        SLICE=piece,
        SPLITS=splits,
        PARTS=triton.next_power_of_2(splits),
        WIDTH=triton.next_power_of_2(width),
        COUNT=MATRICES,
        num_warps=16 if wide else 8,
        # Two programs of 16 warps fit into the registers of a multiprocessor.
        maxnreg=64 if wide and streams.dtype == torch.bfloat16 else None,
        num_stages=1,
    )
    return mixed, shares


@functools.cache
def _flags(device: torch.device) -> torch.Tensor:
    """Return the tiles' counters, all zero between launches; launches share a stream."""
    return torch.zeros(_FLAGS, dtype=torch.int32, device=device)
