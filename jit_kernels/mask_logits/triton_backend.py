"""Masked logits in Triton: no logit is read, and only those that become -inf are written."""

import torch
import triton
import triton.language as tl

from jit_kernels.triton_launch import prepared

_BLOCK = 4096


@prepared
@triton.jit
def _mask_kernel(
    logits_ptr: tl.tensor, logits_row: tl.tensor, vocab: tl.tensor, rows_ptr: tl.tensor,
    masks_ptr: tl.tensor, words: tl.tensor, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    entry = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = column < vocab
    word = tl.load(masks_ptr + entry * words + column // 32, mask=here, other=-1)
    left_out = here & (((word >> (column % 32)) & 1) == 0)
    out = logits_ptr + tl.load(rows_ptr + entry) * logits_row + column
    tl.store(out, tl.full((BLOCK,), float("-inf"), tl.float32), mask=left_out)


def mask_logits(logits: torch.Tensor, rows: torch.Tensor, masks: torch.Tensor) -> None:
    """Forbid tokens in place; see `jit_kernels.mask_logits.mask_logits`."""
    count, vocab = rows.shape[0], logits.shape[1]
    if not count:
        return
    _mask_kernel[(count, triton.cdiv(vocab, _BLOCK))](
        logits, logits.stride(0), vocab, rows, masks, masks.shape[1],
        BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
