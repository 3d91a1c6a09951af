"""Repetition, presence and frequency penalties, from token counts kept on the device."""

from collections.abc import Sequence

import numpy as np
import torch

from layers.staging import stage
from runtime.wire.arrays import INT32, unpacked
from runtime.wire.step import LineSampling

__all__ = ["Penalties", "has_penalty"]

_FIRST_SLOTS = 4


def has_penalty(sampling: LineSampling) -> bool:
    """Say whether any of the three penalties is set."""
    return bool(
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty
        or sampling.frequency_penalty
    )


class Penalties:
    """Token counts of the lines with a penalty, one slot of a device table each."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab = vocab_size
        self._device = device
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._counts = torch.zeros((0, vocab_size), dtype=torch.float32, device=device)
        self._in_prompt = torch.zeros((0, vocab_size), dtype=torch.bool, device=device)
        self._staged: tuple[object, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] | None = None

    def join(self, line: int, sampling: LineSampling) -> None:
        """Count a line's prompt and output from now on, if it has a penalty."""
        self.leave(line)
        if not has_penalty(sampling):
            return
        if not self._free:
            self._grow()
        self._slots[line] = slot = self._free.pop()
        output = unpacked(sampling.output, INT32)
        counts = np.bincount(output, minlength=self._vocab).astype(np.float32)
        self._counts[slot] = stage(counts, self._device)
        self._in_prompt[slot] = False
        if sampling.repetition_penalty != 1.0:
            prompt = np.unique(unpacked(sampling.prompt, INT32)).astype(np.int64)
            self._in_prompt[slot].index_fill_(0, stage(prompt, self._device), True)

    def leave(self, line: int) -> None:
        """Forget a line; one that is not counted may be named, too."""
        slot = self._slots.pop(line, None)
        if slot is not None:
            self._free.append(slot)

    def apply(
        self,
        logits: torch.Tensor,
        rows: Sequence[int],
        lines: Sequence[int],
        samplings: Sequence[LineSampling],
    ) -> None:
        """Penalise `rows` of `logits` [s, V] float32 in place; each is of a line that joined.

        A token of the prompt or the output has its logit divided by repetition_penalty where
        positive, else multiplied. Then a token of the output loses presence_penalty once, and
        frequency_penalty as often as it is there.
        """
        slots, where, factors = self._staged_of(rows, lines, samplings)
        repetition, presence, frequency = factors.split(1, dim=1)
        counts = self._counts.index_select(0, slots)
        in_output = counts > 0
        seen = self._in_prompt.index_select(0, slots).logical_or_(in_output)
        values = logits.index_select(0, where)
        repeated = torch.where(values > 0, values / repetition, values * repetition)
        values = torch.where(seen, repeated, values)
        values -= counts.mul_(frequency)
        values -= in_output * presence
        logits.index_copy_(0, where, values)

    def count(self, tokens: torch.Tensor) -> None:
        """Add the tokens sampled for the rows of the last `apply`, without waiting for them.

        tokens  [s] int64 on the device, of all rows of the logits
        """
        assert self._staged is not None
        slots, where, _ = self._staged[1]
        at = slots * self._vocab + tokens.index_select(0, where)
        ones = torch.ones(at.shape, device=self._device)
        self._counts.view(-1).index_add_(0, at, ones)

    def _staged_of(
        self, rows: Sequence[int], lines: Sequence[int], samplings: Sequence[LineSampling]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return slots, rows and [n, 3] penalties on the device, the same while rows are."""
        slots = tuple(self._slots[line] for line in lines)
        wishes = tuple(
            (s.repetition_penalty, s.presence_penalty, s.frequency_penalty) for s in samplings
        )
        key = (slots, tuple(rows), wishes)
        if self._staged is None or self._staged[0] != key:
            both = stage(np.array([slots, rows], dtype=np.int64), self._device)
            factors = stage(np.array(wishes, dtype=np.float32), self._device)
            self._staged = key, (both[0], both[1], factors)
        return self._staged[1]

    def _grow(self) -> None:
        """Double the table; slots stay where they are."""
        held = self._counts.shape[0]
        more = max(held, _FIRST_SLOTS)
        self._counts = torch.cat((self._counts, self._counts.new_zeros((more, self._vocab))))
        self._in_prompt = torch.cat(
            (self._in_prompt, self._in_prompt.new_zeros((more, self._vocab)))
        )
        self._free = list(range(held + more - 1, held - 1, -1))
