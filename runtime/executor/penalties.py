"""Repetition, presence and frequency penalties, from token counts kept on the device."""

from dataclasses import dataclass

import numpy as np
import torch

from layers.staging import stage
from runtime.executor.step_plan import SampleState
from runtime.messages import Sampling

_FIRST_LINES = 4


def has_penalty(sampling: Sampling) -> bool:
    """Say whether any of the three penalties is set."""
    return bool(
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty
        or sampling.frequency_penalty
    )


@dataclass(slots=True)
class _Line:
    """The table line of one request: `counted` of its `output` tokens are in it.

    Holding `output` keeps its address from being used again while the line is known by it.
    """

    output: list[int]
    index: int
    counted: int


class Penalties:
    """Token counts of the penalised requests, one line of a device table each.

    A step adds only the tokens that are new since the last one, all requests at once. A request
    that is not sampled keeps its line until another needs it; then, or when its output became
    shorter, its line is counted afresh.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab = vocab_size
        self._device = device
        self._lines: dict[int, _Line] = {}  # by id(output); least recently used first
        self._free: list[int] = []
        self._counts = torch.zeros((0, vocab_size), dtype=torch.float32, device=device)
        self._in_prompt = torch.zeros((0, vocab_size), dtype=torch.bool, device=device)
        self._staged: tuple[object, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] | None = None

    def apply(self, logits: torch.Tensor, rows: list[int], samples: list[SampleState]) -> None:
        """Penalise `rows` of `logits` [s, V] float32 in place; samples[i] belongs to rows[i].

        A token of the prompt or the output has its logit divided by repetition_penalty where
        positive, else multiplied. Then a token of the output loses presence_penalty once, and
        frequency_penalty as often as it is there.
        """
        lines, where, factors = self._staged_of(self._update(samples), rows, samples)
        repetition, presence, frequency = factors.split(1, dim=1)
        counts = self._counts.index_select(0, lines)
        in_output = counts > 0
        seen = self._in_prompt.index_select(0, lines).logical_or_(in_output)
        values = logits.index_select(0, where)
        repeated = torch.where(values > 0, values / repetition, values * repetition)
        values = torch.where(seen, repeated, values)
        values -= counts.mul_(frequency)
        values -= in_output * presence
        logits.index_copy_(0, where, values)

    def _staged_of(
        self, lines: list[int], rows: list[int], samples: list[SampleState]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return lines, rows and penalties [p, 3] on the device; staged anew if they changed."""
        settings = [s.sampling for s in samples]
        wishes = [(s.repetition_penalty, s.presence_penalty, s.frequency_penalty) for s in settings]
        key = (lines, [*rows], wishes)
        if self._staged is None or self._staged[0] != key:
            both = stage(np.array([lines, rows], dtype=np.int64), self._device)
            factors = stage(np.array(wishes, dtype=np.float32), self._device)
            self._staged = key, (both[0], both[1], factors)
        return self._staged[1]

    def _update(self, samples: list[SampleState]) -> list[int]:
        """Bring the samples' lines up to date and return their indices."""
        used = {id(state.output) for state in samples}
        spare = [key for key in self._lines if key not in used]
        new_lines: list[int] = []
        new_tokens: list[int] = []
        indices: list[int] = []
        for state in samples:
            line = self._lines.pop(id(state.output), None)
            if line is None or line.counted > len(state.output):
                line = self._start(state, line, spare)
            else:
                fresh = state.output[line.counted :]
                new_tokens += fresh
                new_lines += [line.index] * len(fresh)
                line.counted = len(state.output)
            self._lines[id(state.output)] = line
            indices.append(line.index)
        if new_tokens:
            at = np.array(new_lines, dtype=np.int64) * self._vocab + new_tokens
            ones = torch.ones(len(new_tokens), device=self._device)
            self._counts.view(-1).index_add_(0, stage(at, self._device), ones)
        return indices

    def _start(self, state: SampleState, line: _Line | None, spare: list[int]) -> _Line:
        """Count a request from its beginning, in its own line or one that nobody uses now."""
        if line is not None:
            index = line.index
        elif self._free:
            index = self._free.pop()
        elif spare:
            index = self._lines.pop(spare.pop(0)).index
        else:
            self._grow()
            index = self._free.pop()
        counts = np.bincount(state.output, minlength=self._vocab).astype(np.float32)
        self._counts[index] = stage(counts, self._device)
        self._in_prompt[index] = False
        if state.sampling.repetition_penalty != 1.0:
            prompt = stage(np.unique(state.prompt).astype(np.int64), self._device)
            self._in_prompt[index].index_fill_(0, prompt, True)
        return _Line(state.output, index, len(state.output))

    def _grow(self) -> None:
        """Double the table; lines stay where they are."""
        held = self._counts.shape[0]
        more = max(held, _FIRST_LINES)
        self._counts = torch.cat((self._counts, self._counts.new_zeros((more, self._vocab))))
        self._in_prompt = torch.cat(
            (self._in_prompt, self._in_prompt.new_zeros((more, self._vocab)))
        )
        self._free = list(range(held + more - 1, held - 1, -1))
