"""What becomes of a step's result: lengths, pages for the tree, tokens, ends."""

from collections.abc import Callable

from runtime.executor.step_plan import StepResult
from runtime.scheduler.decode import DecodeSet
from runtime.scheduler.endings import Endings
from runtime.scheduler.flight import Step
from runtime.scheduler.grammar_gate import GrammarGate
from runtime.scheduler.replies import Replies
from runtime.scheduler.request import Request, Status
from runtime.scheduler.residency import Residency
from runtime.scheduler.stats import Stats


class Settling:
    """Takes in results, in the order in which their steps were launched.

    on_publish  called when the tree may have more than before
    """

    def __init__(
        self,
        residency: Residency,
        *,
        prefills: list[Request],
        decoding: DecodeSet,
        gate: GrammarGate,
        endings: Endings,
        stats: Stats,
        replies: Replies,
        on_publish: Callable[[], None],
    ) -> None:
        self._residency = residency
        self._prefills = prefills
        self._decoding = decoding
        self._gate = gate
        self._endings = endings
        self._stats = stats
        self._replies = replies
        self._on_publish = on_publish
        self._now_s = 0.0

    def step(self, step: Step, result: StepResult, *, now_s: float, elapsed_s: float) -> None:
        """Settle a step whose result came at `now_s`, `elapsed_s` after it could begin."""
        self._now_s = now_s
        if step.decoding:
            self._decode(step, result)
        if step.decoding < len(step.requests):
            self._prefill(step, result, elapsed_s)
        self._gate.tell()

    def held(self, requests: list[Request], result: StepResult, *, now_s: float) -> None:
        """Have held requests go on with the tokens that were sampled for them."""
        self._now_s = now_s
        for k, request in enumerate(requests):
            self._decoding.resume(request, result.token_ids[k])
            self._take_token(request, result, k)
        self._gate.tell()

    def _prefill(self, step: Step, result: StepResult, elapsed_s: float) -> None:
        requests, plan = step.requests[step.decoding :], step.plan
        own = slice(step.decoding, len(step.requests))
        # Not `scheduled`: the next chunk may be in flight.
        ends: list[int] = (plan.chunk_start + plan.chunk_len)[own].tolist()
        self._stats.prefill_step(
            requests,
            tokens=int(plan.chunk_len[own].sum()),
            pending_tokens=sum(r.target - e for r, e in zip(requests, ends, strict=True)),
            elapsed_s=elapsed_s,
        )
        spans = plan.prompt_logprobs
        for span, logprobs in zip(spans, result.prompt_logprobs, strict=True):
            step.requests[span.row].prompt_logprobs.append(logprobs)
        entries = step.entries
        for request, end in zip(requests, ends, strict=True):
            request.committed = end
            done = end == request.target
            k = entries.get(request.id)
            if k is None or result.failed[k] is None:
                self._residency.publish(request, partial=done)
            if request.cached_tokens is None:
                request.cached_tokens = request.matched
                self._stats.cached(request)
            if not done:
                continue
            request.times.computed(self._now_s)
            self._prefills.remove(request)
            request.status = Status.DECODE
            if k is None:
                self._endings.finish(request, "length", now_s=self._now_s)
            elif self._take_token(request, result, k):
                self._decoding.add(request)
        for k, twin in enumerate(step.twins, start=len(entries)):
            self._take_first_token(twin, result, k)
        self._on_publish()

    def _take_first_token(self, twin: Request, result: StepResult, k: int) -> None:
        """Give a waiting request the token sampled from another one's prompt, which was its own.

        It goes on waiting, for a row that starts behind the prompt.
        """
        twin.cached_tokens = twin.prompt_tokens if self._residency.reuse else 0
        self._stats.cached(twin)
        twin.times.admitted(self._now_s)
        twin.times.computed(self._now_s)
        self._take_token(twin, result, k)

    def _decode(self, step: Step, result: StepResult) -> None:
        self._decoding.settled(step, result)
        taken = 0
        for k, request in enumerate(step.requests[: step.decoding]):
            if request.status is not Status.DECODE:
                continue  # it ended with the step before: this token is one too many
            taken += 1
            request.committed += 1
            if k not in step.held:
                self._take_token(request, result, k)
        self._stats.decode_step(taken)

    def _take_token(self, request: Request, result: StepResult, k: int) -> bool:
        """Append sampled token `k` to its request; False if that ended the request."""
        failure = result.failed[k]
        if failure is not None:
            self._endings.fail(request, failure)
            return False
        token = result.token_ids[k]
        request.append(token)
        self._stats.sampled(request)
        self._replies.token(request, token, result.logprobs[k])
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
