"""From a step's logits to its tokens: penalties, biases, the draw, log-probabilities."""

from dataclasses import dataclass, field

import numpy as np
import torch

from jit_kernels.sample import sample
from runtime.executor.logprobs import top_logprobs
from runtime.executor.masks import unpack_masks
from runtime.executor.penalties import Penalties, has_penalty
from runtime.executor.step_plan import SampleState
from runtime.messages import TokenLogprobs

_LEAST_TEMPERATURE = 1e-6
_NOT_FINITE = -1
_ALL_FORBIDDEN = -2
_REASONS = {
    _NOT_FINITE: "logits are not finite",
    _ALL_FORBIDDEN: "logit_bias, grammar and forbidden stop tokens leave no token to sample",
}


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Tokens of one step; every list has one entry per sampled row.

    token_ids  the token, 0 where the row failed
    failed     why the row has no usable token, or None
    logprobs   of the token, where asked and not failed; else None
    """

    token_ids: list[int]
    failed: list[str | None]
    logprobs: list[TokenLogprobs | None]


@dataclass(slots=True)
class _Company:
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
    params: dict[str, torch.Tensor]
    bias: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None
    penalised: list[int] = field(default_factory=list)
    held_back: list[tuple[int, list[int]]] = field(default_factory=list)
    reporting: dict[tuple[int, tuple[int, ...]], list[int]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    constrained: list[int] = field(default_factory=list)

    def is_of(self, samples: list[SampleState]) -> bool:
        """Say whether these are the same requests in the same order."""
        return len(samples) == len(self.samples) and all(
            a is b for a, b in zip(samples, self.samples, strict=True)
        )


class Sampler:
    """Picks the next token of each row; a row gets the same one in any company.

    The model's logits are changed in this order: repetition penalty, presence and frequency
    penalties, logit bias, then stop tokens are forbidden until min_new_tokens outputs exist, then
    what a grammar does not allow is. Where these two leave nothing, the grammar alone counts: a
    complete output ends.
    Temperature and the filters follow in `jit_kernels.sample`.

    Log-probabilities are those of the model: log-softmax of the logits before any of these,
    and at temperature 1, which is what users of the OpenAI API and of vLLM expect. (SGLang
    reports them after penalties and temperature.)

    A row whose logits are not finite, or that has no token left, fails alone.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab = vocab_size
        self._device = device
        self._penalties = Penalties(vocab_size, device)
        self._company: _Company | None = None

    def sample(
        self, logits: torch.Tensor, samples: list[SampleState], positions: np.ndarray
    ) -> SampledTokens:
        """Sample one token per row and report the log-probabilities that rows ask for.

        logits     [s, V] float32, not changed
        samples    s states; `output` must hold every token before the one sampled now, and
                   `sampling`, `logprobs`, `stop_ids` must stay as they were at the first call
        positions  [s] int64 position the sampled token will have
        """
        if not samples:
            return SampledTokens([], [], [])
        if self._company is None or not self._company.is_of(samples):
            self._company = self._meet(samples)
        company = self._company
        adjusted = self._adjust(logits, company)
        tokens = sample(
            adjusted, position=torch.from_numpy(positions.astype(np.int64)), **company.params
        )
        finite = logits.amax(-1).isfinite() & logits.amin(-1).isfinite()
        tokens = tokens.masked_fill(~finite, _NOT_FINITE)
        if adjusted is not logits:
            stuck = finite & ~adjusted.amax(-1).isfinite()
            tokens = tokens.masked_fill(stuck, _ALL_FORBIDDEN)
        codes: list[int] = tokens.tolist()
        failed = [None if code >= 0 else _REASONS[code] for code in codes]
        for row, reason in company.refused.items():
            failed[row] = failed[row] or reason
        token_ids = [
            code if reason is None else 0 for code, reason in zip(codes, failed, strict=True)
        ]
        return SampledTokens(token_ids, failed, self._report(logits, token_ids, failed))

    def _meet(self, samples: list[SampleState]) -> _Company:
        """Read every state once, into what the steps of this company need."""
        company = _Company(list(samples), _params(samples, self._vocab), None)
        bias: list[tuple[int, int, float]] = []
        for row, state in enumerate(samples):
            reason = self._refusal(state)
            if reason is not None:
                company.refused[row] = reason
                continue
            sampling = state.sampling
            bias += [(row, token, value) for token, value in sampling.logit_bias.items()]
            if has_penalty(sampling):
                company.penalised.append(row)
            if sampling.min_new_tokens:
                stops = [token for token in state.stop_ids if 0 <= token < self._vocab]
                company.held_back.append((row, stops))
            if state.constraint is not None:
                company.constrained.append(row)
            if state.logprobs is not None:
                wish = (state.logprobs.top, state.logprobs.token_ids)
                company.reporting.setdefault(wish, []).append(row)
        if bias:
            rows, tokens, values = zip(*bias, strict=True)
            company.bias = (
                torch.tensor(rows, device=self._device),
                torch.tensor(tokens, device=self._device),
                torch.tensor(values, dtype=torch.float32, device=self._device),
            )
        return company

    def _refusal(self, state: SampleState) -> str | None:
        """Say which token id of a request is outside the vocabulary, if any.

        An index out of range would end the whole step, not this request alone.
        """
        asked = {"logit_bias": tuple(state.sampling.logit_bias)}
        if state.logprobs is not None:
            asked["logprobs"] = state.logprobs.token_ids
        for name, ids in asked.items():
            for token in ids:
                if not 0 <= token < self._vocab:
                    return f"{name} names token {token}, the vocabulary has {self._vocab}"
        return None

    def _adjust(self, logits: torch.Tensor, company: _Company) -> torch.Tensor:
        """Return the logits with penalties, biases and forbidden tokens; a copy if any."""
        forbidden = [
            (row, token)
            for row, stops in company.held_back
            if len(company.samples[row].output) < company.samples[row].sampling.min_new_tokens
            for token in stops
        ]
        if not (forbidden or company.penalised or company.bias or company.constrained):
            return logits
        logits = logits.clone()
        if company.penalised:
            states = [company.samples[row] for row in company.penalised]
            self._penalties.apply(logits, company.penalised, states)
        if company.bias:
            rows, tokens, values = company.bias
            logits.index_put_((rows, tokens), values, accumulate=True)
        free = logits.clone() if forbidden and company.constrained else logits
        if forbidden:
            at = torch.tensor(forbidden, device=self._device)
            logits[at[:, 0], at[:, 1]] = -torch.inf
        if company.constrained:
            self._constrain(logits, free, company)
        return logits

    def _constrain(self, logits: torch.Tensor, free: torch.Tensor, company: _Company) -> None:
        """Forbid, in place, what grammars do not allow; `free` has no stop token forbidden yet."""
        rows = torch.tensor(company.constrained, device=self._device)
        states = [company.samples[row] for row in company.constrained]
        allowed = unpack_masks(states, self._vocab, self._device)
        values = logits.index_select(0, rows).masked_fill_(~allowed, -torch.inf)
        if free is not logits:
            stuck = values.amax(-1, keepdim=True) == -torch.inf
            ending = free.index_select(0, rows).masked_fill_(~allowed, -torch.inf)
            values = torch.where(stuck, ending, values)
        logits.index_copy_(0, rows, values)

    def _report(
        self, logits: torch.Tensor, token_ids: list[int], failed: list[str | None]
    ) -> list[TokenLogprobs | None]:
        """Return each row's log-probabilities; rows with equal wishes are computed together."""
        reports: list[TokenLogprobs | None] = [None] * len(token_ids)
        assert self._company is not None
        for (top, asked), wanting in self._company.reporting.items():
            rows = [row for row in wanting if failed[row] is None]
            if not rows:
                continue
            chosen = logits
            if len(rows) < len(token_ids):
                chosen = logits.index_select(0, torch.tensor(rows, device=self._device))
            targets = np.array([token_ids[row] for row in rows], dtype=np.int64)
            many = top_logprobs(chosen, targets, top, asked)
            for i, row in enumerate(rows):
                reports[row] = TokenLogprobs(
                    many.values[i : i + 1],
                    many.ids[i : i + 1],
                    many.top[i : i + 1],
                    many.picked[i : i + 1],
                )
        return reports


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
