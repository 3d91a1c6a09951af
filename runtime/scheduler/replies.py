"""News of requests, collected during a turn and sent as one message."""

from collections.abc import Iterator

from runtime.messages import FinishType, Output
from runtime.packed_logprobs import PromptLogprobs, TokenLogprobs
from runtime.scheduler.request import Outgoing, Request

# Tokens, and log-probabilities of them, that a request keeps back: a token may have a thousand.
_MOST_UNSENT = 64
_MOST_UNSENT_ENTRIES = 1 << 13
# Log-probabilities in one message: the API process reads it in ten milliseconds, at a stretch.
MOST_ENTRIES = 1 << 16


class Replies:
    """Collects tokens per request; a request that does not stream gets them all at its end.

    Where it wants log-probabilities it gets them in parts: one message of all would hold up others.
    """

    def __init__(self) -> None:
        self._fresh: dict[int, Request] = {}
        self._done: list[Output] = []

    def token(self, request: Request, token: int, logprobs: TokenLogprobs | None) -> None:
        """Note a sampled token."""
        request.outgoing.tokens.append(token)
        if logprobs is not None:
            request.outgoing.logprobs.append(logprobs)
            request.outgoing.entries += logprobs.entries
        if request.stream or _is_full(request.outgoing):
            self._fresh[request.id] = request

    def finish(
        self,
        request: Request,
        finish: FinishType,
        *,
        matched: int | None = None,
        error: str | None = None,
    ) -> None:
        """Note that a request ended; its unsent tokens go along."""
        self._fresh.pop(request.id, None)
        self._done.append(_output(request, finish, matched, error))

    def forget(self, request: Request) -> None:
        """Send no news of a request before there are more: they are doubted, or nobody waits."""
        self._fresh.pop(request.id, None)

    def take(self) -> list[Output]:
        """Return all news since the last call."""
        if not self._fresh and not self._done:
            return []
        items = [_output(request, None, None, None) for request in self._fresh.values()]
        items += self._done
        self._fresh, self._done = {}, []
        return items


def in_messages(items: list[Output]) -> Iterator[list[Output]]:
    """Yield news in order, in parts that are no more work to read than others may wait for."""
    begun, entries = 0, 0
    for number, item in enumerate(items):
        if item.logprobs is None:
            continue
        more = item.logprobs.entries
        if entries and entries + more > MOST_ENTRIES:
            yield items[begun:number]
            begun, entries = number, 0
        entries += more
    yield items[begun:]


def _is_full(out: Outgoing) -> bool:
    """Whether a request that does not stream has as much unsent as one message may hold."""
    return len(out.logprobs) >= _MOST_UNSENT or out.entries >= _MOST_UNSENT_ENTRIES


def _output(
    request: Request, finish: FinishType | None, matched: int | None, error: str | None
) -> Output:
    out = request.outgoing
    first, request.outgoing = not out.begun, Outgoing(begun=True)
    return Output(
        request_id=request.id,
        token_ids=out.tokens,
        finish=finish,
        matched_stop=matched,
        error=error,
        prompt_tokens=request.prompt_tokens if first else 0,
        cached_tokens=(request.cached_tokens or 0) if first else 0,
        queue_s=request.times.queue_s if first else 0.0,
        prefill_s=request.times.prefill_s if first else 0.0,
        decode_s=request.times.decode_s,
        chunks=request.times.chunks if first else [],
        grammar_s=request.constraint.compile_s if first and request.constraint else 0.0,
        prompt_logprobs=_prompt_logprobs(request, out) if first else None,
        logprobs=_joined(out.logprobs) if out.logprobs else None,
    )


def _prompt_logprobs(request: Request, out: Outgoing) -> PromptLogprobs | None:
    """Return the spans of the prompt together, its first token without a value."""
    wanted = request.logprobs
    if wanted is None or wanted.start >= request.prompt_tokens:
        return None
    first = int(request.tokens[wanted.start])
    return PromptLogprobs(first, wanted.top, wanted.token_ids, out.prompt_logprobs)


def _joined(parts: list[TokenLogprobs]) -> TokenLogprobs:
    if len(parts) == 1:
        return parts[0]
    whole = TokenLogprobs()
    for part in parts:
        whole.extend(part)
    return whole
