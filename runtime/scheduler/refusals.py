"""Which requests are turned away at the door, and why."""

from collections.abc import Container

from runtime.messages import Generate, Refused
from runtime.scheduler.settings import SchedulerSettings


def refusal_of(
    message: Generate,
    settings: SchedulerSettings,
    *,
    known: Container[int],
    waiting: int,
    free_rows: int,
    has_grammars: bool,
) -> Refused | None:
    """Return why a request cannot even wait, or None.

    known         ids of the requests that wait or run
    waiting       requests in the queue
    free_rows     rows that nobody runs in: so many of those that wait hold nobody up
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
    if waiting >= settings.max_queued_requests + free_rows:
        return Refused(message.request_id, "queue_full", "the request queue is full")
    return None
