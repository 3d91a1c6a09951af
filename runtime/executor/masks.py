"""Packed token masks of grammars, on the device for as long as they stay the same."""

import numpy as np
import torch

from jit_kernels.mask_logits import WORD_BITS
from layers.staging import room, stage
from runtime.executor.step_plan import SampleState

__all__ = ["Masks"]


class Masks:
    """What the constraints of some rows allow; a mask travels when it is another one than before.

    Of an output whose grammar has not begun it is the same one in every step.
    """

    def __init__(self, rows: list[int], vocab_size: int, device: torch.device) -> None:
        """`rows` are the rows of the logits that have a constraint."""
        self._device = device
        # The bits of the last word that are past the vocabulary, set.
        self._past = np.int32(-1 << vocab_size % WORD_BITS if vocab_size % WORD_BITS else 0)
        self._rows = stage(np.array(rows, dtype=np.int64), device)
        self._known: list[np.ndarray | None] = [None] * len(rows)
        self._forbids = np.zeros(len(rows), dtype=bool)
        words = -(-vocab_size // WORD_BITS)
        self._packed = torch.full((len(rows), words), -1, dtype=torch.int32, device=device)

    def of(self, states: list[SampleState]) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return rows [c] and masks [c, ceil(V / 32)] as `mask_logits` takes them.

        states  of the rows; one whose mask is not known yet is not held to anything

        None: no mask forbids a token.
        """
        masks = [None if s.constraint is None else s.constraint.allowed for s in states]
        new = [i for i, mask in enumerate(masks) if mask is not self._known[i]]
        if new:
            fresh = room((len(new), self._packed.shape[1]), torch.int32, self._device)
            lines = fresh.numpy()
            for line, i in zip(lines, new, strict=True):
                mask = masks[i]
                line[:] = -1 if mask is None else mask
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
