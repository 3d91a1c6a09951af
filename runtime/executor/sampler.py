"""From a step's logits to its tokens: penalties, biases, the draw, log-probabilities."""

from dataclasses import dataclass

import numpy as np
import torch

from jit_kernels.likeliest import NOT_FINITE, likeliest
from jit_kernels.sample import sample, sample_unread
from jit_kernels.sample.reference import uniform
from layers.staging import stage
from runtime.executor.company import Company
from runtime.executor.logprobs import top_logprobs
from runtime.executor.masks import unpack_masks
from runtime.executor.penalties import Penalties
from runtime.executor.step_plan import SampleState
from runtime.messages import TokenLogprobs

_ALL_FORBIDDEN = -2
_REASONS = {
    NOT_FINITE: "logits are not finite",
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


class SampledAhead:
    """Tokens that were drawn on the device, of which the host hears when it asks.

    tokens  [s] int64 on the device, 0 where a row failed
    """

    def __init__(
        self, sampler: "Sampler", company: Company, codes: torch.Tensor, logits: torch.Tensor
    ) -> None:
        """Let the codes travel; the logits are kept, as a copy, only where they are reported."""
        self.tokens = codes.clamp(min=0)
        self._sampler = sampler
        self._company = company
        self._arrived: torch.cuda.Event | None = None
        self._codes = codes
        if codes.is_cuda:
            self._codes = torch.empty(codes.shape, dtype=codes.dtype, pin_memory=True)
            self._codes.copy_(codes, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()
        self._logits = logits.clone() if company.reporting else logits.new_empty((0, 0))

    @torch.inference_mode()
    def settle(self) -> SampledTokens:
        """Wait for the tokens and return them, with the log-probabilities that were asked for."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._sampler.tell(self._codes.tolist(), self._logits, self._company)


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
        self._company: Company | None = None

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
        company = self._company_of(samples)
        adjusted = self._adjust(logits, company)
        tokens = self._draw(adjusted, company, positions)
        return self.tell(_codes(tokens, logits, adjusted).tolist(), logits, company)

    def sample_ahead(
        self, logits: torch.Tensor, samples: list[SampleState], positions: np.ndarray
    ) -> SampledAhead:
        """Draw the tokens that `sample` would, without waiting for the device.

        Takes what `sample` takes; `output` may lack tokens that the host has not heard of yet.
        Raises ValueError where a row has a penalty, a grammar that has begun, or a stop token
        forbidden: those need the host.
        """
        company = self._company_of(samples)
        if company.needs_host():
            raise ValueError("a row that needs the host cannot be sampled ahead")
        adjusted = self._adjust_ahead(logits, company)
        if adjusted is logits and not company.unread().draws:
            return SampledAhead(self, company, likeliest(logits), logits)
        tokens = self._draw(adjusted, company, positions, ahead=True)
        return SampledAhead(self, company, _codes(tokens, logits, adjusted), logits)

    def _draw(
        self, logits: torch.Tensor, company: Company, positions: np.ndarray, *, ahead: bool = False
    ) -> torch.Tensor:
        """Return the tokens; nothing of a device is read, and nothing at all if `ahead`."""
        position = torch.from_numpy(positions.astype(np.int64))
        if not ahead and not logits.is_cuda:
            return sample(logits, position=position, **company.params)
        params, chance = company.unread(), None
        if params.draws:
            chance = stage(uniform(company.params["seed"], position).numpy(), self._device)
        return sample_unread(logits, params, chance)

    def _company_of(self, samples: list[SampleState]) -> Company:
        if self._company is None or not self._company.is_of(samples):
            self._company = Company.of(samples, vocab_size=self._vocab, device=self._device)
        return self._company

    def tell(self, codes: list[int], logits: torch.Tensor, company: Company) -> SampledTokens:
        """Return what was sampled: a token, or why there is none, where a code is below 0."""
        failed = [None if code >= 0 else _REASONS[code] for code in codes]
        for row, reason in company.refused.items():
            failed[row] = failed[row] or reason
        token_ids = [
            code if reason is None else 0 for code, reason in zip(codes, failed, strict=True)
        ]
        reports = self._report(logits, token_ids, failed=failed, company=company)
        return SampledTokens(token_ids, failed, reports)

    def _adjust_ahead(self, logits: torch.Tensor, company: Company) -> torch.Tensor:
        """Return what `_adjust` does, of a company that needs no host, without waiting for it."""
        forbidden = company.unbegun()
        if forbidden is None and not company.bias:
            return logits
        logits = logits.clone()
        _add_bias(logits, company)
        if forbidden is not None:
            rows, tokens, never = forbidden
            logits.index_put_((rows, tokens), never)
        return logits

    def _adjust(self, logits: torch.Tensor, company: Company) -> torch.Tensor:
        """Return the logits with penalties, biases and forbidden tokens; a copy if any."""
        forbidden = company.forbidden()
        if not (forbidden or company.penalised or company.bias or company.constrained):
            return logits
        logits = logits.clone()
        if company.penalised:
            states = [company.samples[row] for row in company.penalised]
            self._penalties.apply(logits, company.penalised, states)
        _add_bias(logits, company)
        free = logits.clone() if forbidden and company.constrained else logits
        if forbidden:
            at = torch.tensor(forbidden, device=self._device)
            logits[at[:, 0], at[:, 1]] = -torch.inf
        if company.constrained:
            self._constrain(logits, free, company)
        return logits

    def _constrain(self, logits: torch.Tensor, free: torch.Tensor, company: Company) -> None:
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
        self,
        logits: torch.Tensor,
        token_ids: list[int],
        *,
        failed: list[str | None],
        company: Company,
    ) -> list[TokenLogprobs | None]:
        """Return each row's log-probabilities; rows with equal wishes are computed together."""
        reports: list[TokenLogprobs | None] = [None] * len(token_ids)
        for (top, asked), wanting in company.reporting.items():
            rows = [row for row in wanting if failed[row] is None]
            if not rows:
                continue
            chosen = logits
            if len(rows) < len(token_ids):
                chosen = logits.index_select(0, torch.tensor(rows, device=self._device))
            targets = np.array([token_ids[row] for row in rows], dtype=np.int64)
            many = top_logprobs(chosen, targets, top, asked)
            for i, row in enumerate(rows):
                reports[row] = many.part(i, i + 1)
        return reports


def _add_bias(logits: torch.Tensor, company: Company) -> None:
    if company.bias:
        rows, tokens, values = company.bias
        logits.index_put_((rows, tokens), values, accumulate=True)


def _codes(tokens: torch.Tensor, logits: torch.Tensor, adjusted: torch.Tensor) -> torch.Tensor:
    """Return the tokens, or why a row has none, on the logits' device."""
    finite = likeliest(logits) != NOT_FINITE
    codes = tokens.masked_fill(~finite, NOT_FINITE)
    if adjusted is not logits:
        stuck = finite & ~adjusted.amax(-1).isfinite()
        codes = codes.masked_fill(stuck, _ALL_FORBIDDEN)
    return codes
