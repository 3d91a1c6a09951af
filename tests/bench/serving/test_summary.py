"""Figures of runs whose every time is known."""

import pytest

from tests.bench.serving.outcome import Outcome
from tests.bench.serving.prompt import Asked, Prompt
from tests.bench.serving.report import report
from tests.bench.serving.server_facts import ServerFacts
from tests.bench.serving.summary import by_group, ideal_hits, spread, summarise
from tests.bench.serving.workload import Call, Workload


def played(workload: Workload, *, cached: int | None = 0) -> list[Asked]:
    """Return the workload as answered breadth first, one call a second, a token every 0.1 s."""
    asked: list[Asked] = []
    level = [(root, Prompt.begin(workload.calls[root])) for root in workload.roots]
    while level:
        below: list[tuple[int, Prompt]] = []
        for index, prompt in level:
            call = workload.calls[index]
            sent_s = float(len(asked))
            answer = [10**6 + index] * call.output_tokens
            arrivals = [(sent_s + 0.5 + 0.1 * k, k + 1) for k in range(call.output_tokens)]
            outcome = Outcome(sent_s, sent_s + 0.9, arrivals, len(prompt.ids), cached_tokens=cached)
            asked.append(Asked(call, prompt, outcome, answer))
            for child in workload.children[index]:
                below.append((child, prompt.go_on(answer, "", workload.calls[child])))
        level = below
    return asked


def two_turns(cached: int | None = 2) -> list[Asked]:
    """Return one conversation of two turns: prompts of 3 and 6 tokens, answers of 2."""
    calls = [Call([1, 2, 3], 2, group="turn 1"), Call([4], 2, parent=0, group="turn 2")]
    return played(Workload("w", calls), cached=cached)


def test_percentiles_are_values_that_occurred() -> None:
    found = spread([0.004, 0.001, 0.003, 0.002])

    assert found is not None
    assert found.mean == pytest.approx(2.5)
    assert (found.p50, found.p99, found.max) == pytest.approx((3.0, 4.0, 4.0))
    assert spread([]) is None


def test_a_run_is_counted_and_timed() -> None:
    asked = two_turns()

    told = summarise(asked, ideal_hits(asked))

    assert (told.requests, told.errors) == (2, 0)
    assert told.duration_s == pytest.approx(1.9)
    assert (told.input_tokens, told.output_tokens) == (9, 4)
    assert told.output_tokens_per_s == pytest.approx(4 / 1.9)
    assert told.tokens_per_s == pytest.approx(13 / 1.9)
    assert told.concurrency == pytest.approx(1.8 / 1.9)
    assert told.cached_share == pytest.approx(4 / 9)
    assert told.ideal_share == pytest.approx(5 / 9)
    assert told.ttft is not None
    assert told.ttft.p50 == pytest.approx(500)
    assert told.itl is not None
    assert told.itl.mean == pytest.approx(100)
    assert told.tpot is not None
    assert told.tpot.mean == pytest.approx(400)


def test_what_the_server_does_not_tell_is_not_made_up() -> None:
    asked = two_turns(cached=None)

    told = summarise(asked, ideal_hits(asked))

    assert told.cached_tokens is None
    assert told.cached_share is None


def test_failed_requests_count_as_errors_and_for_nothing_else() -> None:
    asked = two_turns()
    asked[1].outcome.error = "503 full"

    told = summarise(asked, ideal_hits(asked))

    assert (told.requests, told.errors, told.first_error) == (2, 1, "503 full")
    assert told.input_tokens == 3


def test_a_run_without_a_request_has_a_summary() -> None:
    assert summarise([], []).requests_per_s == 0


def test_tokens_that_come_together_share_their_gap() -> None:
    outcome = Outcome(sent_s=0.0, ended_s=1.0, arrivals=[(0.2, 1), (0.8, 4)])

    assert outcome.gaps_s() == pytest.approx([0.2, 0.2, 0.2])
    assert outcome.ttft_s == 0.2


def test_the_steady_rate_counts_while_every_answer_is_streaming() -> None:
    asked = two_turns()
    asked[0].outcome.arrivals = [(1.0, 1), (2.0, 5), (3.0, 9), (4.0, 13)]
    asked[1].outcome.arrivals = [(2.0, 1), (3.0, 3)]

    assert summarise(asked, [0, 0]).steady_tokens_per_s == pytest.approx(4 + 2)


def test_the_steady_rate_is_that_of_the_server_however_many_tokens_come_together() -> None:
    asked = two_turns()
    for one, late_s in zip(asked, (0.0, 1.0), strict=True):
        one.outcome.arrivals = [(late_s + 4.0 * k, 4 * (k + 1)) for k in range(3)]

    assert summarise(asked, [0, 0]).steady_tokens_per_s == pytest.approx(2.0)


def test_without_a_common_time_there_is_no_steady_rate() -> None:
    assert summarise(two_turns(), [0, 0]).steady_tokens_per_s is None
    assert summarise([], []).steady_tokens_per_s is None


def test_what_the_cache_was_given_before_the_run_can_be_hit() -> None:
    asked = two_turns()

    assert ideal_hits(asked, known=[[1, 2, 3, 9]]) == [2, 5]


def test_groups_are_told_apart() -> None:
    asked = two_turns()

    groups = by_group(asked, ideal_hits(asked))

    assert list(groups) == ["turn 1", "turn 2"]
    assert [row.input_tokens for row in groups.values()] == [3, 6]


def test_the_report_says_it_all() -> None:
    asked = two_turns()
    hits = ideal_hits(asked)

    text = report(
        "multi-turn",
        ServerFacts("umbra", "1.2", "tiny", None),
        summarise(asked, hits),
        by_group(asked, hits),
    )

    for line in (
        "Successful requests:                    2",
        "Ideal hit rate (%):                     55.56",
        "Output token throughput (tok/s):        2.11",
        "| turn 2 | 1 | 500.00 | 500.00 | 900.00 | 100.00 | 6 | 2 | 33.33 | 83.33 |",
    ):
        assert line in text
    assert "- Time to first token (ms) -" in text


def test_more_hits_than_there_could_be_are_explained() -> None:
    asked = two_turns(cached=3)

    text = report("w", ServerFacts("u", "1", "m", None), summarise(asked, ideal_hits(asked)), {})

    assert "the cache was not empty" in text
    assert "counts other tokens than the ideal, as it does of a chat" in text


def test_a_report_of_failures_says_what_went_wrong() -> None:
    asked = two_turns()
    for one in asked:
        one.outcome.error = "503 full"

    text = report("w", ServerFacts("u", "1", "m", None), summarise(asked, [0, 0]), {})

    assert "the first said: 503 full" in text
    assert "Time to first token" not in text
