"""Embedded tokens in Triton: a program has a stretch of a row."""

import torch
import triton
import triton.language as tl

from jit_kernels.checks import ShapeError
from jit_kernels.triton_launch import prepared

_COLUMNS = 1024


@prepared
@triton.jit(do_not_specialize=["vocab"])
def _kernel(
    token_ptr: tl.tensor, table_ptr: tl.tensor, out_ptr: tl.tensor, shares_ptr: tl.tensor,
    vocab: tl.tensor, width: tl.tensor, N: tl.constexpr, COLUMNS: tl.constexpr,
    PLACES: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    token = tl.load(token_ptr + row)
    known = (token >= 0) & (token < vocab)
    inside = column < width
    found = tl.load(table_ptr + token * width + column, mask=inside & known, other=float("nan"))
    tl.store(out_ptr + row * width + column, found, mask=inside)
    if tl.program_id(1) == 0:
        place = tl.arange(0, PLACES)
        share = tl.where(place < N * N, 0.0, 1.0)
        tl.store(shares_ptr + row * (N + 1) * N + place, share, mask=place < (N + 1) * N)


def embed_streams(
    token_ids: torch.Tensor, table: torch.Tensor, streams: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Look rows up; see `jit_kernels.embed_streams.embed_streams`."""
    if not table.is_contiguous():
        raise ShapeError("table is not contiguous")
    tokens, (vocab, width) = token_ids.shape[0], table.shape
    out = torch.empty((tokens, width), dtype=table.dtype, device=table.device)
    shares = out.new_empty((tokens, streams + 1, streams), dtype=torch.float32)
    if not out.numel():
        return out, shares
    columns = min(_COLUMNS, triton.next_power_of_2(width))
    _kernel[(tokens, triton.cdiv(width, columns))](
        *(token_ids.contiguous(), table, out, shares, vocab, width),
        N=streams,
        COLUMNS=columns,
        PLACES=triton.next_power_of_2((streams + 1) * streams),
        num_warps=4,
    )
    return out, shares
