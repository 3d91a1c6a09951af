"""What becomes of a step's result: lengths, pages for the tree, tokens, ends."""

import logging
from collections.abc import Callable

from runtime.packed_logprobs import unpack_logprobs
from runtime.scheduler.endings import Endings
from runtime.scheduler.grammar_gate import GrammarGate
from runtime.scheduler.replies import Replies
from runtime.scheduler.request import Request, Status
from runtime.scheduler.request_sets import RequestSets
from runtime.scheduler.residency import Residency
from runtime.scheduler.stats import Stats
from runtime.scheduler.step import Step, StepState
from runtime.wire.arrays import INT32, UINT8, unpacked
from runtime.wire.step import NOT_FINITE_REASON, KeptResult, PackedLogprobs, StepResult

logger = logging.getLogger("umbra.scheduler")


class _Tokens:
    """What a result says of its entries.

    accepted  [s] int32 tokens of each entry: 0 or 1
    tokens    int32 these
    failed    entry -> why it has none
    """

    def __init__(self, result: StepResult | KeptResult) -> None:
        self.accepted = unpacked(result.accepted, INT32)
        self.tokens = unpacked(result.tokens, INT32)
        self.failed = {failure.entry: failure.reason for failure in result.failures}
        self._first = (self.accepted.cumsum() - self.accepted).tolist()
        self._tokens = self.tokens.tolist()
        self._logprobs = {one.entry: one.logprobs for one in result.logprobs}

    def token(self, entry: int) -> int:
        """Return the token of an entry that has one."""
        return self._tokens[self._first[entry]]

    def logprobs(self, entry: int) -> PackedLogprobs | None:
        """Return the log-probabilities that an entry asked for."""
        return self._logprobs.get(entry)


class Settling:
    """Takes in results, in the order in which their steps were launched.

    on_publish  called when the tree may have more than before
    """

    def __init__(
        self,
        residency: Residency,
        *,
        sets: RequestSets,
        gate: GrammarGate,
        endings: Endings,
        stats: Stats,
        replies: Replies,
        on_publish: Callable[[], None],
    ) -> None:
        self._residency = residency
        self._sets = sets
        self._decoding = sets.decoding
        self._gate = gate
        self._endings = endings
        self._stats = stats
        self._replies = replies
        self._on_publish = on_publish
        self._now_s = 0.0

    def step(self, step: Step, result: StepResult, *, now_s: float, elapsed_s: float) -> None:
        """Settle a step whose result came at `now_s`, `elapsed_s` after it could begin."""
        step.advance(StepState.SETTLED)
        self._now_s = now_s
        tokens = _Tokens(result)
        finite: list[int] = unpacked(result.finite, UINT8).tolist()
        if not all(finite):
            self._distrust_ends(step, finite)
        if step.decoding:
            self._decode(step, tokens, finite)
        if step.decoding < step.told:
            self._prefill(step, result, tokens, finite=finite, elapsed_s=elapsed_s)
        self._gate.tell()

    def _distrust_ends(self, step: Step, finite: list[int]) -> None:
        """Have nobody go on from answers whose last token turns out not to be finite."""
        for request, is_finite in zip(step.rows.requests, finite, strict=True):
            if request.unseen_end and not is_finite:
                logger.warning("The end of request %d is not finite", request.id)
                pages = self._residency.distrust.end(request)
                self._stats.count("distrusted_pages", pages)

    def held(self, requests: list[Request], result: KeptResult, *, now_s: float) -> None:
        """Have held requests go on with the tokens that were sampled for them."""
        self._now_s = now_s
        tokens = _Tokens(result)
        for k, request in enumerate(requests):
            if k not in tokens.failed:
                self._decoding.resume(request, tokens.token(k))
            self._take_token(request, tokens, k)
        self._gate.tell()

    def _prefill(
        self,
        step: Step,
        result: StepResult,
        tokens: _Tokens,
        *,
        finite: list[int],
        elapsed_s: float,
    ) -> None:
        requests, own = step.requests[step.decoding :], slice(step.decoding, step.told)
        # Not `scheduled`: the next chunk may be in flight.
        ends: list[int] = step.rows.end[own].tolist()
        self._stats.prefill_step(
            requests,
            tokens=int(step.rows.count[own].sum()),
            pending_tokens=sum(r.target - e for r, e in zip(requests, ends, strict=True)),
            elapsed_s=elapsed_s,
        )
        self._take_spans(step, result)
        entries = step.entries
        for request, end, is_finite in zip(requests, ends, finite[own], strict=True):
            if request.status is Status.PREFILL:  # else it failed with the chunk before
                self._take_chunk(request, end, tokens, entries.get(request.id), is_finite)
        for k, (row, twin) in enumerate(step.rows.twins, start=len(entries)):
            if finite[row]:  # else it goes on waiting, and computes its own
                self._take_first_token(twin, tokens, k)
        self._on_publish()

    def _take_spans(self, step: Step, result: StepResult) -> None:
        for span, packed in zip(step.rows.spans, result.spans, strict=True):
            request = step.rows.requests[span.row]
            if request.status is not Status.SUSPENDED:  # else all of them are computed again
                request.outgoing.prompt_logprobs.append(packed)

    def _take_chunk(
        self, request: Request, end: int, tokens: _Tokens, entry: int | None, is_finite: int
    ) -> None:
        """Take in a chunk of a prompt up to `end`; what is not finite is not published."""
        start, request.committed = request.committed, end
        done = end == request.target
        request.times.chunk(end, self._now_s)
        failure = None if entry is None else tokens.failed.get(entry)
        if failure is None and not is_finite:
            failure = NOT_FINITE_REASON
        if failure is None and (done or not request.suspect):
            if request.suspect:
                pages = self._residency.distrust.suspect(request)
                self._stats.count("distrusted_pages", pages)
            self._residency.publish(request, partial=done)
        self._stats.computed(request, start, end)
        if request.cached_tokens is None:
            request.cached_tokens = request.matched
            self._stats.cached(request)
        if done:
            request.times.computed(self._now_s)
            self._sets.finish_prefill(request)
        if failure == NOT_FINITE_REASON:
            self._endings.not_finite(request)
        elif failure is not None:
            self._endings.fail(request, failure)
        elif done and entry is None:
            self._endings.finish(request, "length", now_s=self._now_s)
        elif entry is not None and self._take_token(request, tokens, entry):
            self._decoding.add(request)

    def _take_first_token(self, twin: Request, tokens: _Tokens, k: int) -> None:
        """Give a waiting request the token sampled from another one's prompt, which was its own.

        It goes on waiting, for a row that starts behind the prompt.
        """
        twin.cached_tokens = twin.prompt_tokens if self._residency.reuse else 0
        self._stats.cached(twin)
        twin.times.admitted(self._now_s)
        twin.times.computed(self._now_s)
        self._take_token(twin, tokens, k)

    def _decode(self, step: Step, tokens: _Tokens, finite: list[int]) -> None:
        self._decoding.settled(step, tokens.accepted, tokens.tokens)
        taken = 0
        for k, request in enumerate(step.requests[: step.decoding]):
            if request.status is not Status.DECODE:
                continue  # it ended with the step before: this token is one too many
            taken += 1
            request.committed += 1
            if not finite[k]:
                self._endings.not_finite(request)
            elif k not in step.held:
                self._take_token(request, tokens, k)
        self._stats.decode_step(taken)

    def _take_token(self, request: Request, tokens: _Tokens, k: int) -> bool:
        """Append the token of entry `k` to its request; False if that ended the request."""
        if (failure := tokens.failed.get(k)) == NOT_FINITE_REASON and request.row >= 0:
            self._endings.not_finite(request)
            return False
        if failure is not None:
            self._endings.fail(request, failure)
            return False
        token = tokens.token(k)
        request.append(token)
        self._stats.sampled(request)
        self._sets.shares.charge(request.share, 1)
        packed = tokens.logprobs(k)
        told = None
        if packed is not None and request.logprobs is not None:
            told = unpack_logprobs(packed, request.logprobs.token_ids)
        self._replies.token(request, token, told)
        sampling = request.sampling
        enough = request.output_tokens >= sampling.min_new_tokens
        if (token in request.stop_ids and enough) or self._gate.completes(request, token):
            self._endings.finish(request, "stop", now_s=self._now_s, matched=token)
            return False
        if request.output_tokens >= sampling.max_new_tokens:
            self._endings.finish(request, "length", now_s=self._now_s)
            return False
        if request.constraint is not None:
            request.constraint.take(token)
        return True
