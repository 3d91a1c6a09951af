"""Figures of a run: from what was seen of each request to one row."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.bench.serving.outcome import Outcome
from tests.bench.serving.perfect_cache import PerfectCache
from tests.bench.serving.prompt import Asked


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds. A percentile is the value of that rank, never one in between."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A run, or one group of it. None stands for what the server does not tell.

    input_tokens   as the server counts them, else as they were sent
    cached_share   of the input tokens of those replies that say how many were cached
    ideal_share    the same with a cache that forgets nothing and shares at once
    concurrency    requests in flight on average
    steady_tokens_per_s   answer tokens a second while every answer was being streamed; None where
                   there was no such time
    """

    requests: int
    errors: int
    first_error: str | None
    duration_s: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int | None
    cached_share: float | None
    ideal_share: float | None
    concurrency: float
    steady_tokens_per_s: float | None
    ttft: Spread | None
    tpot: Spread | None
    itl: Spread | None
    e2e: Spread | None

    @property
    def requests_per_s(self) -> float:
        """Good replies a second."""
        return (self.requests - self.errors) / self.duration_s

    @property
    def input_tokens_per_s(self) -> float:
        """Prompt tokens a second, cached ones included."""
        return self.input_tokens / self.duration_s

    @property
    def output_tokens_per_s(self) -> float:
        """Answer tokens a second."""
        return self.output_tokens / self.duration_s

    @property
    def tokens_per_s(self) -> float:
        """Prompt and answer tokens a second."""
        return self.input_tokens_per_s + self.output_tokens_per_s


def spread(seconds: Iterable[float]) -> Spread | None:
    """Return the spread of `seconds` in milliseconds; None of nothing."""
    values = sorted(1e3 * value for value in seconds)
    if not values:
        return None
    return Spread(
        mean=sum(values) / len(values),
        p50=_rank(values, 0.5),
        p90=_rank(values, 0.9),
        p99=_rank(values, 0.99),
        max=values[-1],
    )


def _rank(values: Sequence[float], share: float) -> float:
    return values[round(share * (len(values) - 1))]


def ideal_hits(asked: Sequence[Asked], known: Iterable[Sequence[int]] = ()) -> list[int]:
    """Return the tokens of each prompt that a perfect cache would have had when it was sent.

    Prompts count from the moment they are sent, answers from their end.
    known  what the cache was given before the run
    """
    moments = [(a.outcome.sent_s, 1, k) for k, a in enumerate(asked)]
    moments += [(a.outcome.ended_s, 0, k) for k, a in enumerate(asked)]
    cache, hits = PerfectCache(), [0] * len(asked)
    for tokens in known:
        cache.add(tokens)
    for _, starts, k in sorted(moments):
        one = asked[k]
        if starts:
            hits[k] = cache.hit(one.prompt.ids)
            cache.add(one.prompt.ids)
        elif one.answer_ids:
            cache.add([*one.prompt.ids, *one.answer_ids])
    return hits


def summarise(
    asked: Sequence[Asked], ideal: Sequence[int], *, duration_s: float | None = None
) -> Summary:
    """Return the figures of `asked`, of which `ideal` tokens could have been cached.

    duration_s  None: from the first byte sent to the last one received
    """
    outcomes = [one.outcome for one in asked]
    good = [one for one in asked if one.outcome.error is None]
    if duration_s is None:
        duration_s = max((o.ended_s for o in outcomes), default=0.0)
        duration_s -= min((o.sent_s for o in outcomes), default=0.0)
    told = [one for one in good if one.outcome.cached_tokens is not None]
    cached = sum(one.outcome.cached_tokens or 0 for one in told)
    failures = [o.error for o in outcomes if o.error is not None]
    ideal_of = [hit for hit, one in zip(ideal, asked, strict=True) if one.outcome.error is None]
    return Summary(
        requests=len(asked),
        errors=len(failures),
        first_error=failures[0] if failures else None,
        duration_s=max(duration_s, 1e-9),
        input_tokens=sum(_prompt_tokens(one) for one in good),
        output_tokens=sum(one.outcome.generated for one in good),
        cached_tokens=cached if told else None,
        cached_share=_share(cached, sum(_prompt_tokens(one) for one in told)) if told else None,
        ideal_share=_share(sum(ideal_of), sum(len(one.prompt.ids) for one in good)),
        concurrency=sum(o.e2e_s for o in outcomes) / max(duration_s, 1e-9),
        steady_tokens_per_s=_steady_tokens_per_s([one.outcome for one in good]),
        ttft=spread(o.outcome.ttft_s for o in good if o.outcome.ttft_s is not None),
        tpot=spread(o.outcome.tpot_s for o in good if o.outcome.tpot_s is not None),
        itl=spread(gap for o in good for gap in o.outcome.gaps_s()),
        e2e=spread(o.outcome.e2e_s for o in good),
    )


def _steady_tokens_per_s(good: Sequence[Outcome]) -> float | None:
    """Count from the moment when the last answer has begun to that when the first one ends."""
    streams = [outcome.arrivals for outcome in good if outcome.arrivals]
    start_s = max((arrivals[0][0] for arrivals in streams), default=0.0)
    end_s = min((arrivals[-1][0] for arrivals in streams), default=0.0)
    if end_s <= start_s:
        return None
    came = sum(_tokens_at(end_s, arrivals) - _tokens_at(start_s, arrivals) for arrivals in streams)
    return came / (end_s - start_s)


def _tokens_at(time_s: float, arrivals: Sequence[tuple[float, int]]) -> float:
    """Return how far an answer was: tokens that came together share the time since those before."""
    times, counts = zip(*arrivals, strict=True)
    return float(np.interp(time_s, times, counts))


def by_group(asked: Sequence[Asked], ideal: Sequence[int]) -> dict[str, Summary]:
    """Return the figures of each group, in the order in which they first ended; {} without any."""
    groups: dict[str, list[int]] = {}
    for k, one in enumerate(asked):
        if one.call.group:
            groups.setdefault(one.call.group, []).append(k)
    return {
        name: summarise([asked[k] for k in members], [ideal[k] for k in members])
        for name, members in groups.items()
    }


def _prompt_tokens(one: Asked) -> int:
    told = one.outcome.prompt_tokens
    return len(one.prompt.ids) if told is None else told


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
