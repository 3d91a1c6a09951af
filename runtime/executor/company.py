"""What sampling needs of the requests of a step, read once for as long as they are together."""

from dataclasses import dataclass, field

import numpy as np
import torch

from jit_kernels.sample import DrawParams
from layers.staging import stage
from runtime.executor.masks import Masks
from runtime.executor.penalties import has_penalty
from runtime.executor.step_plan import SampleState

__all__ = ["Company"]

_LEAST_TEMPERATURE = 1e-6


@dataclass(slots=True)
class Company:
    """What stays the same for as long as the same requests are sampled together.

    params     per-row tensors of the sample op, on the CPU
    bias       (rows, token ids, values) on the device, or None
    penalised  rows with a penalty
    held_back  (row, its stop tokens) where min_new_tokens is set
    reporting  (top, token_ids) -> rows that want these log-probabilities
    refused    row -> what cannot be served of its wishes
    constrained  rows whose output follows a grammar
    """

    samples: list[SampleState]
    vocab_size: int
    device: torch.device
    params: dict[str, torch.Tensor]
    bias: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    penalised: list[int] = field(default_factory=list)
    held_back: list[tuple[int, list[int]]] = field(default_factory=list)
    reporting: dict[tuple[int, tuple[int, ...]], list[int]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    constrained: list[int] = field(default_factory=list)
    _unread: DrawParams | None = None
    _masks: Masks | None = None

    @classmethod
    def of(cls, samples: list[SampleState], *, vocab_size: int, device: torch.device) -> "Company":
        """Read every state once, into what the steps of this company need."""
        company = cls(list(samples), vocab_size, device, _params(samples, vocab_size))
        bias: list[tuple[int, int, float]] = []
        for row, state in enumerate(samples):
            reason = _refusal(state, vocab_size)
            if reason is not None:
                company.refused[row] = reason
                continue
            bias += [(row, token, value) for token, value in state.sampling.logit_bias.items()]
            company._note(row, state)
        if bias:
            rows, tokens, values = zip(*bias, strict=True)
            company.bias = (
                stage(np.array(rows, dtype=np.int64), device),
                stage(np.array(tokens, dtype=np.int64), device),
                stage(np.array(values, dtype=np.float32), device),
            )
        return company

    def _note(self, row: int, state: SampleState) -> None:
        """Note what a row wants besides a draw and a bias."""
        if has_penalty(state.sampling):
            self.penalised.append(row)
        if state.sampling.min_new_tokens:
            stops = [token for token in state.stop_ids if 0 <= token < self.vocab_size]
            self.held_back.append((row, stops))
        if state.constraint is not None:
            self.constrained.append(row)
        if state.logprobs is not None:
            wish = (state.logprobs.top, state.logprobs.token_ids)
            self.reporting.setdefault(wish, []).append(row)

    def is_of(self, samples: list[SampleState]) -> bool:
        """Say whether these are the same requests in the same order."""
        return len(samples) == len(self.samples) and all(
            a is b for a, b in zip(samples, self.samples, strict=True)
        )

    @property
    def draws(self) -> bool:
        """Whether any row has a temperature."""
        return self.unread().draws

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

    def masks(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return constrained rows and their masks as `mask_logits` takes them.

        None: no mask forbids a token.
        """
        if not self.constrained:
            return None
        if self._masks is None:
            self._masks = Masks(self.constrained, self.vocab_size, self.device)
        return self._masks.of([self.samples[row] for row in self.constrained])

    def forbidden(self) -> list[tuple[int, int]]:
        """Return (row, stop token) where a row has too few tokens to end."""
        return [
            (row, token)
            for row, stops in self.held_back
            if len(self.samples[row].output) < self.samples[row].sampling.min_new_tokens
            for token in stops
        ]


def _refusal(state: SampleState, vocab_size: int) -> str | None:
    """Say which token id of a request is outside the vocabulary, if any.

    An index out of range would end the whole step, not this request alone.
    """
    asked = {"logit_bias": tuple(state.sampling.logit_bias)}
    if state.logprobs is not None:
        asked["logprobs"] = state.logprobs.token_ids
    for name, ids in asked.items():
        for token in ids:
            if not 0 <= token < vocab_size:
                return f"{name} names token {token}, the vocabulary has {vocab_size}"
    return None


def _params(samples: list[SampleState], vocab_size: int) -> dict[str, torch.Tensor]:
    """Return the per-row parameters of the sample op."""
    settings = [state.sampling for state in samples]
    seeds = np.array([s.seed & 0xFFFFFFFFFFFFFFFF for s in settings], dtype=np.uint64)
    return {
        "temperature": torch.tensor(
            [s.temperature if s.temperature >= _LEAST_TEMPERATURE else 0.0 for s in settings],
            dtype=torch.float32,
        ),
        "top_k": torch.tensor(
            [s.top_k if 0 < s.top_k < vocab_size else vocab_size for s in settings]
        ),
        "top_p": torch.tensor([s.top_p for s in settings], dtype=torch.float32),
        "min_p": torch.tensor([s.min_p for s in settings], dtype=torch.float32),
        "seed": torch.from_numpy(seeds.view(np.int64)),
    }
