"""From a step's logits to its tokens: penalties, biases, the draw, log-probabilities."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from jit_kernels.likeliest import NOT_FINITE, likeliest
from jit_kernels.mask_logits import mask_logits
from jit_kernels.sample import sample, sample_unread
from jit_kernels.sample.noise import row_keys
from layers.staging import Fetched, stage
from runtime.executor.logprobs import TopLogprobs, packed_logprobs
from runtime.executor.penalties import Penalties
from runtime.executor.sampling_rows import SamplingRows
from runtime.wire.arrays import INT32, unpacked
from runtime.wire.step import NOT_FINITE_REASON, EntryLogprobs, Join, LineSampling, Mask

__all__ = ["DrawnTokens", "SampledTokens", "Sampler"]

_ALL_FORBIDDEN = "logit_bias, grammar and forbidden stop tokens leave no token to sample"


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Tokens of s rows.

    tokens    [s] int64, 0 where a row failed
    failures  row -> why it has no usable token
    logprobs  of the tokens, where asked and not failed, by row
    """

    tokens: np.ndarray
    failures: dict[int, str] = field(default_factory=dict)
    logprobs: list[EntryLogprobs] = field(default_factory=list)


class DrawnTokens:
    """Tokens that are drawn on the device, of which the host hears when it asks.

    tokens  [s] int64 on the device, any id of the vocabulary where a row failed
    """

    def __init__(
        self,
        rows: SamplingRows,
        tokens: torch.Tensor,
        *,
        codes: torch.Tensor,
        scores: torch.Tensor | None,
        reports: list[tuple[list[int], TopLogprobs]],
    ) -> None:
        """Start the copies to the host.

        codes    [s] int64 each row's likeliest token, NOT_FINITE where its logits are not
        scores   [s] float32 what each token was drawn with; None: the tokens are the likeliest
        reports  rows, and the log-probabilities that these ask for
        """
        self.tokens = tokens
        self._rows = rows
        self._reports = reports
        self._fetched = Fetched(codes) if scores is None else Fetched(codes, tokens, scores)
        self._read: SampledTokens | None = None

    def read(self) -> SampledTokens:
        """Wait for the tokens and return them, with the log-probabilities that were asked for."""
        if self._read is None:
            self._read = self._sampled()
        return self._read

    def _sampled(self) -> SampledTokens:
        codes, *drawn = (part.tolist() for part in self._fetched.read())
        failed = {row: NOT_FINITE_REASON for row, code in enumerate(codes) if code == NOT_FINITE}
        tokens, scores = drawn or (codes, ())
        for row, score in enumerate(scores):
            if not math.isfinite(score):
                failed.setdefault(row, _ALL_FORBIDDEN)
        for row, reason in self._rows.refused.items():
            failed.setdefault(row, reason)
        logprobs: list[EntryLogprobs] = []
        for rows, report in self._reports:
            values, best, targets = report.read()
            logprobs += [
                EntryLogprobs(
                    row, packed_logprobs(values[i : i + 1], best[i : i + 1], targets[i : i + 1])
                )
                for i, row in enumerate(rows)
                if row not in failed
            ]
        own = np.array(tokens, dtype=np.int64)
        if failed:
            own[[*failed]] = 0
        return SampledTokens(own, failed, logprobs)


class Sampler:
    """Keeps how each line is sampled, and picks next tokens; a row gets the same in any company.

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
        self._lines: dict[int, LineSampling] = {}
        self._masks: dict[int, np.ndarray] = {}
        self._penalties = Penalties(vocab_size, device)
        self._rows: SamplingRows | None = None

    def state(self, line: int) -> LineSampling:
        """Return how a line is sampled. Raises KeyError for one that has not joined."""
        return self._lines[line]

    def update(self, left: Sequence[int], joins: Sequence[Join]) -> None:
        """Forget lines, then let lines join, which forgets what they were before."""
        for line in left:
            self._forget(line)
        for join in joins:
            self._forget(join.line)
            self._lines[join.line] = join.sampling
            self._penalties.join(join.line, join.sampling)

    def forget_lines(self) -> None:
        """Forget all lines; memory that they took on the device stays for others."""
        for line in [*self._lines]:
            self._forget(line)

    def _forget(self, line: int) -> None:
        self._masks.pop(line, None)
        if self._lines.pop(line, None) is not None:
            self._penalties.leave(line)
            self._rows = None

    def mask(self, masks: Sequence[Mask]) -> None:
        """Take in what lines may say next."""
        for mask in masks:
            self._masks[mask.line] = unpacked(mask.words, INT32)

    def draw(
        self,
        logits: torch.Tensor,
        lines: np.ndarray,
        positions: np.ndarray,
        *,
        likely: torch.Tensor | None = None,
    ) -> DrawnTokens:
        """Sample one token per row, without waiting for the device.

        logits     [s, V] float32, not changed
        lines      [s] int32 that joined; one with a penalty has its token counted
        positions  [s] int64 position the sampled token will have
        likely     [s] int64 `likeliest` of the logits, if it is known; not changed

        Raises KeyError for a line that has not joined, ValueError for one whose mask is missing.
        """
        rows = self._rows_of(lines)
        adjusted = self._adjust(logits, rows, positions)
        codes, scores = likeliest(logits) if likely is None else likely, None
        if adjusted is logits and not rows.draws:
            tokens = codes.clamp(min=0)
        else:
            tokens = self._draw(adjusted, rows, positions)
            scores = adjusted.gather(1, tokens[:, None])[:, 0]
        if rows.penalised:
            self._penalties.count(tokens)
        reports = self._report(logits, tokens, rows)
        return DrawnTokens(rows, tokens, codes=codes, scores=scores, reports=reports)

    def lines_there(self, lines: np.ndarray) -> torch.Tensor:
        """Return lines that were just drawn for, [s] int64 on the device."""
        return self._rows_of(lines).lines_there

    def _draw(
        self, logits: torch.Tensor, rows: SamplingRows, positions: np.ndarray
    ) -> torch.Tensor:
        """Return the tokens; on a device, nothing of it is read."""
        position = torch.from_numpy(positions.astype(np.int64))
        if not logits.is_cuda:
            return sample(logits, position=position, **rows.params)
        params, keys = rows.unread(), None
        if params.draws:
            keys = stage(row_keys(rows.params["seed"], position).numpy(), self._device)
        return sample_unread(logits, params, keys)

    def _rows_of(self, lines: np.ndarray) -> SamplingRows:
        if self._rows is None or not self._rows.is_of(lines):
            states = [self._lines[line] for line in lines.tolist()]
            self._rows = SamplingRows.of(lines, states, vocab_size=self._vocab, device=self._device)
        return self._rows

    def _adjust(
        self, logits: torch.Tensor, rows: SamplingRows, positions: np.ndarray
    ) -> torch.Tensor:
        """Return the logits with penalties, biases and forbidden tokens; a copy if any."""
        forbidden, masks = rows.forbidden(positions), rows.masks(self._masks)
        if not (forbidden or rows.penalised or rows.bias or masks):
            return logits
        logits = logits.clone()
        if rows.penalised:
            lines = rows.lines[rows.penalised].tolist()
            states = [rows.states[row] for row in rows.penalised]
            self._penalties.apply(logits, rows.penalised, lines, states)
        if rows.bias:
            at, tokens, values = rows.bias
            logits.index_put_((at, tokens), values, accumulate=True)
        if masks:
            mask_logits(logits, *masks)
        if forbidden:
            self._forbid(logits, forbidden, rows)
        return logits

    def _forbid(self, logits: torch.Tensor, stops: list[tuple[int, int]], of: SamplingRows) -> None:
        """Forbid stop tokens, as (row, token), in place.

        A row with a grammar to which nothing but these is left keeps them.
        """
        constrained = set(of.constrained)
        pairs = [(row, token, row in constrained) for row, token in stops]
        rows, tokens, ruled = stage(np.array(pairs, dtype=np.int64).T, self._device)
        before = logits[rows, tokens]
        logits.index_put_((rows, tokens), torch.full_like(before, -torch.inf))
        if any(ruled for *_, ruled in pairs):
            stuck = (logits.amax(-1)[rows] == -torch.inf) & ruled.bool()
            logits.index_put_((rows, tokens), torch.where(stuck, before, -torch.inf))

    def _report(
        self, logits: torch.Tensor, tokens: torch.Tensor, of: SamplingRows
    ) -> list[tuple[list[int], TopLogprobs]]:
        """Launch each row's log-probabilities; rows with equal wishes are computed together."""
        reports: list[tuple[list[int], TopLogprobs]] = []
        for (top, asked), rows in of.reporting.items():
            chosen, own = logits, tokens
            if len(rows) < len(tokens):
                at = stage(np.array(rows, dtype=np.int64), self._device)
                chosen, own = logits.index_select(0, at), tokens.index_select(0, at)
            reports.append((rows, TopLogprobs(chosen, own, top, asked)))
        return reports
