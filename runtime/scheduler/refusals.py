"""Which requests are turned away at the door, and why."""

import math
from collections.abc import Container
from dataclasses import dataclass

from runtime.messages import Generate, Refused
from runtime.scheduler.settings import SchedulerSettings

__all__ = ["Crowd", "refusal_of"]


@dataclass(frozen=True, slots=True)
class Crowd:
    """Who waits already when a request arrives.

    waiting        requests in the queue
    tokens         that their prefills will compute, as far as is known
    free_rows      rows that nobody runs in: so many of those that wait hold nobody up
    share_waiting  requests in the queue that are of the same share
    share_running  requests that run and are of the same share
    queue_s        seconds until all that wait have rows, at the rate of late
    """

    waiting: int = 0
    tokens: int = 0
    free_rows: int = 0
    share_waiting: int = 0
    share_running: int = 0
    queue_s: float = 0.0


def refusal_of(
    message: Generate,
    settings: SchedulerSettings,
    *,
    known: Container[int],
    crowd: Crowd,
    has_grammars: bool,
) -> Refused | None:
    """Return why a request cannot even wait, or None.

    known         ids of the requests that wait or run
    has_grammars  whether outputs can follow one
    """
    prompt, new = len(message.input_ids) // 4, message.sampling.max_new_tokens
    limit = settings.context_tokens
    if prompt == 0 or message.request_id in known:
        what = "the prompt is empty" if prompt == 0 else "the request id is in use"
        return Refused(message.request_id, "bad_request", what)
    if prompt + new > limit:
        text = f"{prompt} prompt and {new} new tokens can never fit: the limit is {limit}"
        return Refused(message.request_id, "too_long", text)
    grammar = message.sampling.grammar
    if grammar is not None and not has_grammars:
        what = "this server has no grammars"
        return Refused(message.request_id, "grammar", what, param=grammar.field)
    full = _full(message, settings, crowd, prompt)
    if full is not None:
        seconds = retry_after_s(crowd.queue_s)
        return Refused(message.request_id, "queue_full", full, retry_after_s=seconds)
    return None


def retry_after_s(queue_s: float) -> int:
    """Return whole seconds for Retry-After, 1 at least."""
    return max(1, math.ceil(queue_s))


def _full(
    message: Generate, settings: SchedulerSettings, crowd: Crowd, prompt_tokens: int
) -> str | None:
    """Return which bound of the queue a request would exceed, or None."""
    if crowd.waiting >= settings.max_queued_requests + crowd.free_rows:
        return "the request queue is full"
    most = settings.max_queued_tokens
    # Whoever finds a free row never waits, however long its prompt.
    if (
        most is not None
        and crowd.waiting >= crowd.free_rows
        and crowd.tokens + prompt_tokens > most
    ):
        return f"{crowd.tokens} tokens are waiting, {prompt_tokens} more would exceed {most}"
    share = message.share
    if share.max_queued is not None:
        rows = crowd.free_rows
        if share.max_running is not None:
            rows = min(rows, max(share.max_running - crowd.share_running, 0))
        if crowd.share_waiting >= share.max_queued + rows:
            return f"{crowd.share_waiting} requests of this API key are waiting, which is its limit"
    return None
