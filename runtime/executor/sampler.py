"""From a step's logits to its tokens: penalties, biases, the draw, log-probabilities."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from jit_kernels.likeliest import NOT_FINITE, likeliest
from jit_kernels.mask_logits import mask_logits
from jit_kernels.sample import sample, sample_unread
from jit_kernels.sample.noise import row_keys
from layers.staging import Fetched, stage
from runtime.executor.company import Company
from runtime.executor.logprobs import TopLogprobs
from runtime.executor.penalties import Penalties
from runtime.executor.step_plan import SampleState
from runtime.messages import TokenLogprobs

_NOT_FINITE = "logits are not finite"
_ALL_FORBIDDEN = "logit_bias, grammar and forbidden stop tokens leave no token to sample"


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
    """Tokens that are drawn on the device, of which the host hears when it asks.

    tokens  [s] int64 on the device, any id of the vocabulary where a row failed
    """

    def __init__(
        self,
        company: Company,
        tokens: torch.Tensor,
        *,
        codes: torch.Tensor,
        scores: torch.Tensor | None,
        reports: list[tuple[list[int], TopLogprobs]],
    ) -> None:
        """Let travel what the host is to hear of.

        codes    [s] int64 each row's likeliest token, NOT_FINITE where its logits are not
        scores   [s] float32 what each token was drawn with; None: the tokens are the likeliest
        reports  rows, and the log-probabilities that these ask for
        """
        self.tokens = tokens
        self._company = company
        self._reports = reports
        self._fetched = Fetched(codes) if scores is None else Fetched(codes, tokens, scores)

    def settle(self) -> SampledTokens:
        """Wait for the tokens and return them, with the log-probabilities that were asked for."""
        codes, *drawn = (part.tolist() for part in self._fetched.read())
        failed = [_NOT_FINITE if code == NOT_FINITE else None for code in codes]
        tokens, scores = drawn or (codes, ())
        for row, score in enumerate(scores):
            if failed[row] is None and not math.isfinite(score):
                failed[row] = _ALL_FORBIDDEN
        for row, reason in self._company.refused.items():
            failed[row] = failed[row] or reason
        logprobs: list[TokenLogprobs | None] = [None] * len(tokens)
        for rows, report in self._reports:
            many = report.settle()
            for i, row in enumerate(rows):
                logprobs[row] = many.part(i, i + 1) if failed[row] is None else None
        pairs = zip(tokens, failed, strict=True)
        return SampledTokens([t if why is None else 0 for t, why in pairs], failed, logprobs)


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
        """Sample as `sample_ahead` does, and wait for the tokens."""
        return self.sample_ahead(logits, samples, positions).settle()

    def sample_ahead(
        self,
        logits: torch.Tensor,
        samples: list[SampleState],
        positions: np.ndarray,
        *,
        likely: torch.Tensor | None = None,
    ) -> SampledAhead:
        """Sample one token per row, without waiting for the device.

        logits     [s, V] float32, not changed
        samples    s states; `output` must hold every token before the one sampled now, where the
                   row reads it, and `sampling`, `logprobs`, `stop_ids` must stay as they were at
                   the first call. One whose mask is not known is sampled as if it had none
        positions  [s] int64 position the sampled token will have
        likely     [s] int64 `likeliest` of the logits, if it is known; not changed
        """
        company = self._company_of(samples)
        adjusted = self._adjust(logits, company)
        codes, scores = likeliest(logits) if likely is None else likely, None
        if adjusted is logits and not company.draws:
            tokens = codes.clamp(min=0)
        else:
            tokens = self._draw(adjusted, company, positions)
            scores = adjusted.gather(1, tokens[:, None])[:, 0]
        reports = self._report(logits, tokens, company)
        return SampledAhead(company, tokens, codes=codes, scores=scores, reports=reports)

    def _draw(self, logits: torch.Tensor, company: Company, positions: np.ndarray) -> torch.Tensor:
        """Return the tokens; on a device, nothing of it is read."""
        position = torch.from_numpy(positions.astype(np.int64))
        if not logits.is_cuda:
            return sample(logits, position=position, **company.params)
        params, keys = company.unread(), None
        if params.draws:
            keys = stage(row_keys(company.params["seed"], position).numpy(), self._device)
        return sample_unread(logits, params, keys)

    def _company_of(self, samples: list[SampleState]) -> Company:
        if self._company is None or not self._company.is_of(samples):
            self._company = Company.of(samples, vocab_size=self._vocab, device=self._device)
        return self._company

    def _adjust(self, logits: torch.Tensor, company: Company) -> torch.Tensor:
        """Return the logits with penalties, biases and forbidden tokens; a copy if any."""
        forbidden, masks = company.forbidden(), company.masks()
        if not (forbidden or company.penalised or company.bias or masks):
            return logits
        logits = logits.clone()
        if company.penalised:
            states = [company.samples[row] for row in company.penalised]
            self._penalties.apply(logits, company.penalised, states)
        if company.bias:
            rows, tokens, values = company.bias
            logits.index_put_((rows, tokens), values, accumulate=True)
        if masks:
            mask_logits(logits, *masks)
        if forbidden:
            self._forbid(logits, forbidden, company)
        return logits

    def _forbid(self, logits: torch.Tensor, stops: list[tuple[int, int]], company: Company) -> None:
        """Forbid stop tokens, as (row, token), in place.

        A row with a grammar to which nothing but these is left keeps them.
        """
        constrained = set(company.constrained)
        pairs = [(row, token, row in constrained) for row, token in stops]
        rows, tokens, ruled = stage(np.array(pairs, dtype=np.int64).T, self._device)
        before = logits[rows, tokens]
        logits.index_put_((rows, tokens), torch.full_like(before, -torch.inf))
        if any(ruled for *_, ruled in pairs):
            stuck = (logits.amax(-1)[rows] == -torch.inf) & ruled.bool()
            logits.index_put_((rows, tokens), torch.where(stuck, before, -torch.inf))

    def _report(
        self, logits: torch.Tensor, tokens: torch.Tensor, company: Company
    ) -> list[tuple[list[int], TopLogprobs]]:
        """Launch each row's log-probabilities; rows with equal wishes are computed together."""
        reports: list[tuple[list[int], TopLogprobs]] = []
        for (top, asked), rows in company.reporting.items():
            chosen, own = logits, tokens
            if len(rows) < len(tokens):
                at = stage(np.array(rows, dtype=np.int64), self._device)
                chosen, own = logits.index_select(0, at), tokens.index_select(0, at)
            reports.append((rows, TopLogprobs(chosen, own, top, asked)))
        return reports
