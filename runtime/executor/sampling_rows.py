"""Sampling parameters of a fixed set of rows, uploaded once and reused while the set stays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from jit_kernels.sample import DrawParams
from layers.staging import stage
from runtime.executor.masks import Masks
from runtime.executor.penalties import has_penalty
from runtime.wire.arrays import FLOAT32, INT32, unpacked
from runtime.wire.step import LineSampling

__all__ = ["SamplingRows", "refusal"]

_LEAST_TEMPERATURE = 1e-6


@dataclass(slots=True)
class SamplingRows:
    """What stays the same for as long as the same lines are sampled together.

    lines       [s] int32, one a row; a line may come several times
    params      per-row tensors of the sample op, on the CPU
    bias        (rows, token ids, values) on the device, or None
    penalised   rows with a penalty
    held_back   row -> its stop tokens, where min_new_tokens is set
    reporting   (top, token ids) -> rows that want these log-probabilities
    refused     row -> what cannot be served of its wishes
    constrained rows whose output follows a grammar
    """

    lines: np.ndarray
    states: list[LineSampling]
    vocab_size: int
    device: torch.device
    params: dict[str, torch.Tensor]
    bias: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    penalised: list[int] = field(default_factory=list)
    held_back: dict[int, list[int]] = field(default_factory=dict)
    reporting: dict[tuple[int, tuple[int, ...]], list[int]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    constrained: list[int] = field(default_factory=list)
    _unread: DrawParams | None = None
    _masks: Masks | None = None
    _lines_there: torch.Tensor | None = None

    @classmethod
    def of(
        cls,
        lines: np.ndarray,
        states: Sequence[LineSampling],
        *,
        vocab_size: int,
        device: torch.device,
    ) -> "SamplingRows":
        """Read every state once, into what the steps of these rows need."""
        rows = cls(lines, list(states), vocab_size, device, _params(states, vocab_size))
        biased: list[tuple[int, np.ndarray, np.ndarray]] = []
        for row, state in enumerate(states):
            reason = refusal(state, vocab_size)
            if reason is not None:
                rows.refused[row] = reason
                continue
            if state.bias_ids:
                ids, values = unpacked(state.bias_ids, INT32), unpacked(state.bias_values, FLOAT32)
                biased.append((row, ids, values))
            rows._note(row, state)
        if biased:
            row_of, tokens, values = zip(*biased, strict=True)
            rows.bias = (
                stage(np.repeat(np.array(row_of, dtype=np.int64), [*map(len, tokens)]), device),
                stage(np.concatenate(tokens).astype(np.int64), device),
                stage(np.concatenate(values), device),
            )
        return rows

    def _note(self, row: int, state: LineSampling) -> None:
        """Note what a row wants besides a draw and a bias."""
        if has_penalty(state):
            self.penalised.append(row)
        if state.min_new_tokens:
            stops = unpacked(state.stop_ids, INT32).tolist()
            self.held_back[row] = [token for token in stops if 0 <= token < self.vocab_size]
        if state.constrained:
            self.constrained.append(row)
        if state.top_logprobs >= 0:
            asked = tuple(unpacked(state.logprob_ids, INT32).tolist())
            self.reporting.setdefault((state.top_logprobs, asked), []).append(row)

    def is_of(self, lines: np.ndarray) -> bool:
        """Say whether these are the same lines in the same order."""
        return np.array_equal(lines, self.lines)

    @property
    def draws(self) -> bool:
        """Whether any row has a temperature."""
        return self.unread().draws

    @property
    def lines_there(self) -> torch.Tensor:
        """The lines, [s] int64 on the device."""
        if self._lines_there is None:
            self._lines_there = stage(self.lines.astype(np.int64), self.device)
        return self._lines_there

    def unread(self) -> DrawParams:
        """Return the parameters of the sample op on the device, the same ones every time."""
        if self._unread is None:
            params = self.params
            drawn = params["temperature"] > 0
            filtered = params["top_k"] < self.vocab_size
            filtered |= (params["top_p"] < 1) | (params["min_p"] > 0)
            self._unread = DrawParams(
                **{
                    name: stage(params[name].numpy(), self.device)
                    for name in ("temperature", "top_k", "top_p", "min_p")
                },
                draws=bool(drawn.any()),
                filters=bool((drawn & filtered).any()),
            )
        return self._unread

    def masks(self, known: Mapping[int, np.ndarray]) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return constrained rows and their masks as `mask_logits` takes them.

        known  packed mask of each line; the same array while it is the same mask

        None: no mask forbids a token. Raises ValueError for a constrained line without a mask.
        """
        if not self.constrained:
            return None
        if self._masks is None:
            self._masks = Masks(self.constrained, self.vocab_size, self.device)
        lines = self.lines[self.constrained].tolist()
        missing = [line for line in lines if line not in known]
        if missing:
            raise ValueError(f"lines {missing} are sampled without a mask")
        return self._masks.of([known[line] for line in lines])

    def forbidden(self, positions: np.ndarray) -> list[tuple[int, int]]:
        """Return (row, stop token) where a row has too few tokens to end.

        positions  [s] int64 of the tokens to be sampled
        """
        return [
            (row, token)
            for row, stops in self.held_back.items()
            if positions[row] - self.states[row].prompt_tokens < self.states[row].min_new_tokens
            for token in stops
        ]


def refusal(state: LineSampling, vocab_size: int) -> str | None:
    """Say which token id of a line is outside the vocabulary, if any.

    An index out of range would end the whole step, not this line alone.
    """
    for name, data in (("logit_bias", state.bias_ids), ("logprobs", state.logprob_ids)):
        if not data:
            continue
        tokens = unpacked(data, INT32)
        outside = tokens[(tokens < 0) | (tokens >= vocab_size)]
        if len(outside):
            return f"{name} names token {outside[0]}, the vocabulary has {vocab_size}"
    return None


def _params(states: Sequence[LineSampling], vocab_size: int) -> dict[str, torch.Tensor]:
    """Return the per-row parameters of the sample op."""
    seeds = np.array([s.seed for s in states], dtype=np.uint64)
    return {
        "temperature": torch.tensor(
            [s.temperature if s.temperature >= _LEAST_TEMPERATURE else 0.0 for s in states],
            dtype=torch.float32,
        ),
        "top_k": torch.tensor(
            [s.top_k if 0 < s.top_k < vocab_size else vocab_size for s in states]
        ),
        "top_p": torch.tensor([s.top_p for s in states], dtype=torch.float32),
        "min_p": torch.tensor([s.min_p for s in states], dtype=torch.float32),
        "seed": torch.from_numpy(seeds.view(np.int64)),
    }
