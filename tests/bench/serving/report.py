"""The report block: what a person reads when a run has ended."""

from collections.abc import Iterator

from tests.bench.serving.server_facts import ServerFacts
from tests.bench.serving.summary import Spread, Summary

WIDTH = 56
_LABEL_COLUMN = 40


def report(workload: str, server: ServerFacts, summary: Summary, groups: dict[str, Summary]) -> str:
    """Return the block, and below it a table of the groups if there are several."""
    lines = [f"{' Serving benchmark: ' + workload + ' ':=^{WIDTH}}"]
    lines += [
        _row("Server:", f"{server.engine} {server.version}"),
        _row("Model:", server.model),
        *_counts(summary),
    ]
    for title, spread in (
        ("End-to-end latency", summary.e2e),
        ("Time to first token", summary.ttft),
        ("Time per output token, first excluded", summary.tpot),
        ("Inter-token latency", summary.itl),
    ):
        if spread is not None:
            lines += [f"{' ' + title + ' (ms) ':-^{WIDTH}}", *_latencies(spread)]
    lines.append("=" * WIDTH)
    if len(groups) > 1:
        lines += ["", *group_table(groups)]
    return "\n".join(lines)


def group_table(groups: dict[str, Summary]) -> Iterator[str]:
    """Yield a markdown table with a row for each group."""
    columns = "requests", "TTFT p50 ms", "TTFT p99 ms", "E2E p50 ms", "ITL p50 ms"
    yield "| group | " + " | ".join((*columns, "input", "cached", "cached %", "ideal %")) + " |"
    yield "|---" + "|---:" * (len(columns) + 4) + "|"
    for name, row in groups.items():
        cells = (
            str(row.requests - row.errors),
            _number(row.ttft and row.ttft.p50),
            _number(row.ttft and row.ttft.p99),
            _number(row.e2e and row.e2e.p50),
            _number(row.itl and row.itl.p50),
            str(row.input_tokens),
            "-" if row.cached_tokens is None else str(row.cached_tokens),
            _number(_percent(row.cached_share)),
            _number(_percent(row.ideal_share)),
        )
        yield f"| {name} | " + " | ".join(cells) + " |"


def _counts(summary: Summary) -> Iterator[str]:
    yield _row("Successful requests:", str(summary.requests - summary.errors))
    yield _row("Failed requests:", str(summary.errors))
    if summary.first_error is not None:
        yield f"  the first said: {summary.first_error}"
    yield _row("Duration (s):", _number(summary.duration_s))
    yield _row("Total input tokens:", str(summary.input_tokens))
    yield _row("Total output tokens:", str(summary.output_tokens))
    yield _row("Request throughput (req/s):", _number(summary.requests_per_s))
    yield _row("Input token throughput (tok/s):", _number(summary.input_tokens_per_s))
    yield _row("Output token throughput (tok/s):", _number(summary.output_tokens_per_s))
    yield _row("  all answers streaming (tok/s):", _number(summary.steady_tokens_per_s))
    yield _row("Total token throughput (tok/s):", _number(summary.tokens_per_s))
    yield _row("Mean concurrency:", _number(summary.concurrency))
    told = "-" if summary.cached_tokens is None else str(summary.cached_tokens)
    yield _row("Cached input tokens:", told)
    yield _row("Cache hit rate (%):", _number(_percent(summary.cached_share)))
    yield _row("Ideal hit rate (%):", _number(_percent(summary.ideal_share)))
    if (summary.cached_share or 0.0) > (summary.ideal_share or 0.0) + 1e-9:
        yield "  more than ideal: the cache was not empty (--flush-cache empties it),"
        yield "  or the server counts other tokens than the ideal, as it does of a chat"


def _latencies(spread: Spread) -> Iterator[str]:
    yield _row("Mean:", _number(spread.mean))
    yield _row("Median:", _number(spread.p50))
    yield _row("P90:", _number(spread.p90))
    yield _row("P99:", _number(spread.p99))
    yield _row("Max:", _number(spread.max))


def _row(label: str, value: str) -> str:
    return f"{label:<{_LABEL_COLUMN}}{value}"


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
