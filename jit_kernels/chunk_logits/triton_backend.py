"""Scores of chunks in Triton: a program takes a few tokens and goes over the keys they see."""

import functools

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import INTERPRETED
from jit_kernels.paged_logits.device_scores import fp8_operand, weighed_scores
from jit_kernels.paged_rows import PageLayout
from jit_kernels.triton_launch import prepared

# Columns of a product: tokens times heads.
QUERIES = 128
KEYS = 128
WARPS = 8
STAGES = 3
RESIDENT = 2


@triton.jit
def _tile(
    queries: tl.tensor, weights: tl.tensor, codes_ptr: tl.tensor, scales_ptr: tl.tensor,
    out_ptr: tl.tensor, first: tl.tensor, start: tl.tensor, end: tl.tensor, past: tl.tensor,
    TOKENS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, KEYS: tl.constexpr,
) -> None:  # fmt: skip
    """Score keys [first, first + KEYS) for all tokens, each of which sees [start, end)."""
    key, column = first + tl.arange(0, KEYS), tl.arange(0, WIDTH)
    found = key < past
    at = codes_ptr + key.to(tl.int64)[:, None] * WIDTH + column[None, :]
    keys = fp8_operand(tl.load(at, mask=found[:, None], other=0))
    scales = tl.load(scales_ptr + key, mask=found, other=0.0)
    scores = weighed_scores(keys, scales, queries, weights, TOKENS, HEADS, KEYS)
    place = key[:, None] - start[None, :]
    tl.store(out_ptr + place, scores, mask=(place >= 0) & (key[:, None] < end[None, :]))


@triton.jit(do_not_specialize=["tokens", "columns"])
def _kernel(
    q_ptr: tl.tensor, weights_ptr: tl.tensor, codes_ptr: tl.tensor, scales_ptr: tl.tensor,
    start_ptr: tl.tensor, end_ptr: tl.tensor, out_ptr: tl.tensor, tokens: tl.tensor,
    columns: tl.tensor, TOKENS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    KEYS: tl.constexpr,
) -> None:  # fmt: skip
    head, column = tl.arange(0, TOKENS * HEADS), tl.arange(0, WIDTH)
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    live = token < tokens
    start = tl.load(start_ptr + token, mask=live, other=1 << 30)
    end = tl.load(end_ptr + token, mask=live, other=0)
    end = tl.minimum(end, start + columns)
    past = tl.max(end, 0)
    first = tl.min(start, 0) + tl.program_id(1) * KEYS
    step = tl.num_programs(1) * KEYS
    if first < past:
        line = tl.program_id(0).to(tl.int64) * (TOKENS * HEADS) + head
        real = line < tokens.to(tl.int64) * HEADS
        at = q_ptr + line[:, None] * WIDTH + column[None, :]
        queries = fp8_operand(tl.load(at, mask=real[:, None], other=0))
        weights = tl.load(weights_ptr + line, mask=real, other=0.0)
        rows_ptr = out_ptr + (token * columns)[None, :]
        if INTERPRETED:
            # The interpreter counts no loop whose bounds are computed.
            while first < past:
                _tile(
                    queries, weights, codes_ptr, scales_ptr, rows_ptr, first, start, end, past,
                    TOKENS, HEADS, WIDTH, KEYS,
                )  # fmt: skip
                first += step
        else:
            for key in range(first, past, step):
                _tile(
                    queries, weights, codes_ptr, scales_ptr, rows_ptr, key, start, end, past,
                    TOKENS, HEADS, WIDTH, KEYS,
                )  # fmt: skip


@prepared
@triton.jit
def _gather_kernel(
    pages_ptr: tl.tensor, named_ptr: tl.tensor, codes_ptr: tl.tensor, scales_ptr: tl.tensor,
    BYTES: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr,
) -> None:  # fmt: skip
    nth = tl.program_id(0).to(tl.int64)
    page_ptr = pages_ptr + tl.load(named_ptr + nth).to(tl.int64) * PAGE
    byte, row = tl.arange(0, BYTES), tl.arange(0, ROWS)
    tl.store(codes_ptr + nth * BYTES + byte, tl.load(page_ptr + byte))
    scales = tl.load((page_ptr + BYTES).to(tl.pointer_type(tl.float32)) + row)
    tl.store(scales_ptr + nth * ROWS + row, scales)


def gather_key_pages(
    pages: torch.Tensor, named: torch.Tensor, layout: PageLayout
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy pages; see `jit_kernels.chunk_logits.gather_key_pages`."""
    count, rows, width = named.shape[0], layout.page_rows, layout.data_bytes
    codes = torch.empty((count * rows, width), dtype=torch.float8_e4m3fn, device=pages.device)
    scales = torch.empty((count * rows,), dtype=torch.float32, device=pages.device)
    if count:
        _gather_kernel[(count,)](
            *(pages, named.contiguous(), codes.view(torch.uint8), scales),
            BYTES=rows * width,
            PAGE=layout.page_bytes,
            ROWS=rows,
            num_warps=4,
        )
    return codes, scales


def chunk_logits(
    q: torch.Tensor,
    weights: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    start: torch.Tensor,
    end: torch.Tensor,
    columns: int,
) -> torch.Tensor:
    """Score blocks; see `jit_kernels.chunk_logits.chunk_logits`."""
    tokens, heads, width = q.shape
    out = torch.empty((tokens, columns), dtype=torch.float32, device=q.device)
    together = QUERIES // heads
    groups = triton.cdiv(tokens, together)
    shares = triton.cdiv(RESIDENT * _processors(q.device), groups)
    _kernel[(groups, min(shares, triton.cdiv(columns, KEYS)))](
        *(q.view(torch.uint8), weights, codes.view(torch.uint8), scales),
        *(start.contiguous(), end.contiguous(), out, tokens, columns),
        TOKENS=together,
        HEADS=heads,
        WIDTH=width,
        KEYS=KEYS,
        num_warps=WARPS,
        num_stages=STAGES,
    )
    return out


@functools.cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
