"""From the news of a choice to what an observer hears."""

from runtime.messages import Output
from runtime.tokenizer.choice import Choice
from runtime.tokenizer.observer import ChoiceEnd, Observer


def hear_news(observer: Observer, choice: Choice, item: Output, *, now_s: float) -> None:
    """Note that news came; the first ones say how long it took until there were any.

    Those of an abort do not: it may have come before the prompt was computed.
    """
    if choice.begun_s is None and item.finish != "abort":
        choice.begun_s = now_s
        observer.begun(choice.index, item)
        observer.stage("prefill_waiting", item.queue_s)
        observer.stage("prefill_forward", item.prefill_s)


def hear_tokens(
    observer: Observer, choice: Choice, count: int, *, started_s: float, now_s: float
) -> None:
    """Note that `count` tokens came of a call that began at `started_s`."""
    if count == 0 or not choice.streams:
        return
    if choice.last_token_s is None:
        observer.first_token(now_s - started_s)
    else:
        observer.inter_token((now_s - choice.last_token_s) / count, count)
    choice.last_token_s = now_s


def hear_end(
    observer: Observer,
    choice: Choice,
    reason: str,
    *,
    decode_s: float | None,
    started_s: float,
    now_s: float,
) -> None:
    """Note the end of a choice; `decode_s` is None where it was cut off."""
    end = ChoiceEnd(
        reason,
        choice.index,
        now_s - started_s,
        decode_s,
        prompt_tokens=choice.prompt_tokens,
        cached_tokens=choice.cached_tokens,
        completion_tokens=choice.completion_tokens,
    )
    observer.finished(end)


def decode_seconds(choice: Choice, item: Output, *, now_s: float) -> float | None:
    """Return how long a choice decoded that ends with `item`; None if it was cut off.

    The scheduler says so, except where the end was found in the text.
    """
    if item.finish is None and choice.begun_s is not None:
        return now_s - choice.begun_s
    return item.decode_s if item.finish in ("stop", "length") else None
