"""Runs the shared trace through an adapter without a clock, and says what was hit and what lost."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The benchmark's setting: 8,192 full pages and 820 SWA pages of SGLang's layout, 14.87 GB.
FULL_PAGES, SWA_PAGES, RUNNING, CHUNK, DECODE_STEP = 8192, 820, 16, 8192, 512


@dataclass(frozen=True, slots=True)
class Rates:
    """Shares of all prompt tokens.

    hit   not computed
    full  whose full pages were there
    lost  computed again although they were, by cause
    """

    hit: float
    full: float
    lost: dict[str, float]


def load_trace(bench: Path) -> Callable[..., Iterator[Any]]:
    """Return the trace generator of the shared benchmark in folder `bench`."""
    sys.path.insert(0, str(bench))
    from workload import trace  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

    return trace  # pyright: ignore[reportUnknownVariableType]


def run_trace(cache: Any, events: Iterator[Any]) -> Rates:
    """Drive an adapter through all events of a trace, as the benchmark does."""
    live: dict[int, tuple[Any, Any, int, int]] = {}
    prompt = hit = full = 0
    for event in events:
        if event[0] == "start":
            _, request, tokens, length, output = event
            row = cache.match(tokens[:length], length)
            cache.lock(row)
            position = row.hit
            while position < length:
                position = min(position + CHUNK, length)
                cache.alloc(row, position)
                cache.insert(row, position, False)
            live[request] = row, tokens, length, output
            prompt, hit, full = prompt + length, hit + row.hit, full + row.full_hit
        else:
            row, tokens, position, output = live.pop(event[1])
            row.toks, end = tokens, position + output
            while position < end:
                position = min(position + DECODE_STEP, end)
                cache.alloc(row, position, decode=True)
            cache.insert(row, end, True)
            cache.unlock(row)
    lost = {cause: tokens / prompt for cause, tokens in cache.lost.items()}
    return Rates(hit / prompt, full / prompt, lost)
