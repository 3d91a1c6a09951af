"""Packed token masks of grammars, on the device for as long as they stay the same."""

from collections.abc import Sequence

import numpy as np
import torch

from jit_kernels.mask_logits import WORD_BITS
from layers.staging import room, stage

__all__ = ["Masks"]


class Masks:
    """What the grammars of some rows allow; a mask travels when it is another one than before."""

    def __init__(self, rows: list[int], vocab_size: int, device: torch.device) -> None:
        """`rows` are the rows of the logits that follow a grammar."""
        self._device = device
        # The bits of the last word that are past the vocabulary, set.
        self._past = np.int32(-1 << vocab_size % WORD_BITS if vocab_size % WORD_BITS else 0)
        self._rows = stage(np.array(rows, dtype=np.int64), device)
        self._known: Sequence[np.ndarray | None] = [None] * len(rows)
        self._forbids = np.zeros(len(rows), dtype=bool)
        words = -(-vocab_size // WORD_BITS)
        self._packed = torch.full((len(rows), words), -1, dtype=torch.int32, device=device)

    def of(self, masks: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return rows [c] and masks [c, ceil(V / 32)] as `mask_logits` takes them.

        masks  of the rows, packed, [ceil(V / 32)] int32 each; the same object while it is the same

        None: no mask forbids a token.
        """
        new = [i for i, mask in enumerate(masks) if mask is not self._known[i]]
        if new:
            fresh = room((len(new), self._packed.shape[1]), torch.int32, self._device)
            lines = fresh.numpy()
            for line, i in zip(lines, new, strict=True):
                line[:] = masks[i]
            lines[:, -1] |= self._past
            self._forbids[new] = (lines != -1).any(axis=1)
            there = fresh.to(self._device, non_blocking=True)
            if len(new) == len(masks):
                self._packed = there
            else:
                at = stage(np.array(new, dtype=np.int64), self._device)
                self._packed.index_copy_(0, at, there)
            self._known = masks
        return (self._rows, self._packed) if self._forbids.any() else None
