"""Log-probabilities of given tokens and of the likeliest ones, from raw logits."""

import math

import numpy as np
import torch

from runtime.messages import TokenLogprobs

_SCALE = 2.0**35
_TILE_ELEMENTS = 1 << 21


def top_logprobs(
    logits: torch.Tensor, targets: np.ndarray, top: int, token_ids: tuple[int, ...]
) -> TokenLogprobs:
    """Report the log-softmax of each row at its target, at its best tokens, and at asked ones.

    logits     [r, V] float32, not changed; read in tiles of rows, so that the extra memory
               stays below 100 MB whatever r is
    targets    [r] token ids in [0, V): the row's own token
    top        best tokens per row (at most V are given), ties to the lower id; 0 for none
    token_ids  tokens in [0, V) reported at every row, in this order

    The normaliser of a row is summed exactly and rounded once, so a row's values have the same
    bits in any company. A row with a NaN or infinite logit has None for its value and empty
    lists: neither could be sent as JSON.
    """
    rows, vocab = logits.shape
    top = min(top, vocab)
    step = max(1, _TILE_ELEMENTS // vocab)
    columns = torch.from_numpy(np.asarray(targets, dtype=np.int64)).to(logits.device)
    picks = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)
    values: list[torch.Tensor] = []
    best: list[torch.Tensor] = []
    for start in range(0, rows, step):
        tile = logits[start : start + step]
        best.append(_best_ids(tile, top))
        wanted = torch.cat(
            (columns[start : start + step, None], best[-1], picks.expand(tile.shape[0], -1)), dim=1
        )
        values.append(_log_softmax_at(tile, wanted))
    if not rows:
        return TokenLogprobs([], [])
    return _assemble(
        torch.cat(values).tolist(),
        np.asarray(targets).tolist(),
        best=torch.cat(best).tolist() if top else None,
        token_ids=token_ids,
    )


def _log_softmax_at(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return [r, k] float32: the log-softmax at columns `wanted`; NaN in rows not finite.

    exp(x - max) is rounded to whole multiples of 2^-35, which float64 adds without rounding, in
    any order. The normaliser is off by at most V * 2^-36 of the largest term: below 2e-6.
    """
    highest = logits.amax(-1, keepdim=True)
    whole = (logits - highest).exp_().mul_(_SCALE).round_()
    mass = whole.sum(-1, keepdim=True, dtype=torch.float64) / _SCALE
    found = (logits.gather(1, wanted).double() - highest) - mass.log()
    finite = highest.isfinite() & logits.amin(-1, keepdim=True).isfinite()
    return found.masked_fill_(~finite, torch.nan).float()


def _best_ids(logits: torch.Tensor, top: int) -> torch.Tensor:
    """Return [r, top] int64: the ids of the largest logits, best first, ties to the lower id.

    topk leaves ties open, so it is given keys without ties: the logit's bits, in an order that
    compares as integers do, above the id counted down.
    """
    if not top:
        return torch.empty((logits.shape[0], 0), dtype=torch.int64, device=logits.device)
    bits = (logits + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    down = torch.arange(logits.shape[1] - 1, -1, -1, device=logits.device)
    keys = (ordered.long() << 32) | down
    return logits.shape[1] - 1 - (keys.topk(top, -1).values & 0xFFFFFFFF)


def _assemble(
    values: list[list[float]],
    targets: list[int],
    *,
    best: list[list[int]] | None,
    token_ids: tuple[int, ...],
) -> TokenLogprobs:
    """Lay out rows of (target, best, asked) values as a message."""
    own: list[float | None] = []
    top: list[list[tuple[float, int]]] = []
    picked: list[list[tuple[float, int]]] = []
    for index, row in enumerate(values):
        finite = not math.isnan(row[0])
        own.append(row[0] if finite else None)
        ids = best[index] if best is not None else []
        if best is not None:
            top.append(list(zip(row[1:], ids, strict=False)) if finite else [])
        if token_ids:
            picked.append(list(zip(row[1 + len(ids) :], token_ids, strict=True)) if finite else [])
    return TokenLogprobs(own, targets, top, picked)
