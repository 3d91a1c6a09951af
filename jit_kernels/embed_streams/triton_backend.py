"""Embedded tokens in Triton: a stretch of a row is read once, and written to each stream."""

import torch
import triton
import triton.language as tl

from jit_kernels.checks import ShapeError
from jit_kernels.triton_launch import prepared

_COLUMNS = 1024


@prepared
@triton.jit(do_not_specialize=["vocab"])
def _kernel(
    token_ptr: tl.tensor, table_ptr: tl.tensor, out_ptr: tl.tensor, vocab: tl.tensor,
    width: tl.tensor, STREAMS: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    token = tl.load(token_ptr + row)
    known = (token >= 0) & (token < vocab)
    inside = column < width
    found = tl.load(table_ptr + token * width + column, mask=inside & known, other=float("nan"))
    for stream in tl.static_range(STREAMS):
        tl.store(out_ptr + (row * STREAMS + stream) * width + column, found, mask=inside)


def embed_streams(token_ids: torch.Tensor, table: torch.Tensor, streams: int) -> torch.Tensor:
    """Look rows up; see `jit_kernels.embed_streams.embed_streams`."""
    if not table.is_contiguous():
        raise ShapeError("table is not contiguous")
    tokens, (vocab, width) = token_ids.shape[0], table.shape
    out = torch.empty((tokens, streams, width), dtype=table.dtype, device=table.device)
    if not out.numel():
        return out
    columns = min(_COLUMNS, triton.next_power_of_2(width))
    _kernel[(tokens, triton.cdiv(width, columns))](
        *(token_ids.contiguous(), table, out, vocab, width),
        STREAMS=streams,
        COLUMNS=columns,
        num_warps=4,
    )
    return out
