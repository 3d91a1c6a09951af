"""Log-probabilities of given tokens and of the likeliest ones, from raw logits."""

from collections.abc import Sequence

import numpy as np
import torch

from layers.staging import Fetched, stage
from runtime.wire.arrays import FLOAT32, INT32, packed
from runtime.wire.step import PackedLogprobs

__all__ = ["TopLogprobs", "joined", "packed_logprobs", "top_logprobs"]

_SCALE = 2.0**35
# Each tile is some forty launches: 64 rows of V4 in two tiles take the host 1.6 ms, in four 2.9.
_TILE_ELEMENTS = 1 << 22


class TopLogprobs:
    """Log-probabilities of some rows, on their way to the host.

    Of each row: the log-softmax at its target, at its best tokens, and at asked ones.
    """

    def __init__(
        self, logits: torch.Tensor, targets: torch.Tensor, top: int, token_ids: tuple[int, ...]
    ) -> None:
        """Launch what finds them; nothing waits for the device.

        logits     [r, V] float32, not changed; read in tiles of rows, so that the extra memory
                   stays below 200 MB whatever r is
        targets    [r] int64 token ids in [0, V), on the device of the logits: the row's own token
        top        best tokens per row (at most V are given), ties to the lower id; 0 for none
        token_ids  tokens in [0, V) reported at every row, in this order

        The normaliser of a row is summed exactly and rounded once, so a row's values have the same
        bits in any company. A row with a NaN or infinite logit has NaN for all its values.
        """
        rows, vocab = logits.shape
        top = min(top, vocab)
        step = max(1, _TILE_ELEMENTS // vocab)
        picks = stage(np.array(token_ids, dtype=np.int64), logits.device)
        values = [logits.new_empty((0, 1 + top + len(token_ids)))]
        best = [targets.new_empty((0, top))]
        for start in range(0, rows, step):
            tile, own = logits[start : start + step], targets[start : start + step, None]
            best.append(_best_ids(tile, top))
            asked = picks.expand(tile.shape[0], -1)
            values.append(_log_softmax_at(tile, torch.cat((own, best[-1], asked), dim=1)))
        self._fetched = Fetched(torch.cat(values), torch.cat(best), targets)

    def read(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Wait for them; return values [r, 1 + top + asked], best [r, top], targets [r]."""
        values, best, targets = (tensor.numpy() for tensor in self._fetched.read())
        return values, best, targets

    def packed(self) -> PackedLogprobs:
        """Wait for them, and return them as a message."""
        return packed_logprobs(*self.read())


def packed_logprobs(values: np.ndarray, best: np.ndarray, targets: np.ndarray) -> PackedLogprobs:
    """Return rows of what `TopLogprobs.read` does as a message."""
    return PackedLogprobs(
        best.shape[1], packed(targets, INT32), packed(values, FLOAT32), packed(best, INT32)
    )


def joined(parts: Sequence[PackedLogprobs]) -> PackedLogprobs:
    """Return several messages, of as many tokens a position, as one."""
    return PackedLogprobs(
        parts[0].top,
        ids=b"".join(part.ids for part in parts),
        values=b"".join(part.values for part in parts),
        best=b"".join(part.best for part in parts),
    )


def top_logprobs(
    logits: torch.Tensor, targets: np.ndarray, top: int, token_ids: tuple[int, ...]
) -> PackedLogprobs:
    """Report what `TopLogprobs` finds, of targets [r] that the host knows."""
    own = stage(np.asarray(targets, dtype=np.int64), logits.device)
    return TopLogprobs(logits, own, top, token_ids).packed()


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
