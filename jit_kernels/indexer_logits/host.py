"""Indexer scores in C."""

import torch

from jit_kernels.host import by_rows, function, raise_fault, rows_of

_indexer_logits = function("indexer_logits", "ppppppiiiii")


def indexer_logits(
    q: torch.Tensor,
    weights: torch.Tensor,
    keys: torch.Tensor,
    *,
    row: torch.Tensor,
    visible: torch.Tensor,
) -> torch.Tensor:
    """Score keys; see `jit_kernels.indexer_logits.indexer_logits`."""
    (tokens, heads, width), (rows, slots, _) = q.shape, keys.shape
    out = torch.empty((tokens, slots), dtype=torch.float32)
    q, weights, keys = (rows_of(part).contiguous() for part in (q, weights, keys))
    row, visible = row.contiguous(), visible.contiguous()
    q_at, weights_at, keys_at = q.data_ptr(), weights.data_ptr(), keys.data_ptr()
    row_at, visible_at, out_at = row.data_ptr(), visible.data_ptr(), out.data_ptr()

    def score(first: int, last: int) -> None:
        code = _indexer_logits(
            *(q_at + 4 * first * heads * width, weights_at + 4 * first * heads, keys_at),
            *(row_at + 8 * first, visible_at + 8 * first, out_at + 4 * first * slots),
            *(last - first, heads, width, rows, slots),
        )
        raise_fault(code)

    by_rows(score, tokens)
    return out
