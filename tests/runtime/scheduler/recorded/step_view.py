"""What a step does, whatever form its plan has: integers only, and lines to compare.

`read_plan` reads today's `StepPlan`. A plan of another form needs another reader that returns the
same `StepView`; what is recorded stays.
"""

import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mem_cache.spec import TreeSpec, div_ceil
from runtime.scheduler.replica import Replica
from runtime.wire.arrays import INT32, unpacked
from runtime.wire.step import PromptSpan
from tests.testing.plan_arrays import PlanArrays

# One letter a token.
LETTERS = string.ascii_letters
Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SaveView:
    """State that a step leaves at a position: a ring, and the window's SWA pages before it."""

    position: int
    ring: int
    window: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowView:
    """One row of a step: `count` tokens of a request from position `start` on.

    tokens      their ids; of one that the step before sampled, whose row it was, as `sampled_by`
    pages       full pages of positions [0, start + count)
    write_from  records before this position are there and stay
    replay      where a replay began whose window is not complete yet; 0: there is none
    window      SWA pages read, of the window's positions before `start`
    ring        read at `start`
    saves       in order; every row leaves its state behind its last token
    sampled     requests that get a token sampled from the last token's logits, in order
    prompt      log-probabilities wanted of the prompt: start, stop, top, targets, token ids
    """

    request: int
    start: int
    count: int
    tokens: tuple[int, ...]
    sampled_by: int | None
    pages: tuple[int, ...]
    write_from: int
    replay: int
    window: tuple[int, ...]
    ring: int
    saves: tuple[SaveView, ...]
    sampled: tuple[int, ...]
    prompt: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class StepView:
    """One step: copies of full pages, SWA pages and rings, then rows in order.

    entries  requests that get a token, in the order of the result
    """

    page_copies: Pairs
    swa_copies: Pairs
    ring_copies: Pairs
    rows: tuple[RowView, ...]
    entries: tuple[int, ...]


def read_plan(plan: PlanArrays, replica: Replica, *, spec: TreeSpec) -> StepView:
    """Return the view of a plan that is about to be launched for `replica`."""
    running = {r.row: r for r in replica.sets.by_id.values() if r.row >= 0}
    by_line = {line: request.id for line, request in running.items()}
    lines: list[int] = plan.sampled_line.tolist()
    twins = {
        twin.id: None
        for line in lines
        if line in running
        for twin in replica.sets.waiting.twins(running[line])
    }
    waiting = iter(twins)
    entries = tuple(by_line[k] if k in by_line else next(waiting) for k in lines)
    ends = np.cumsum(plan.chunk_len).tolist()
    rows = [
        _row(plan, i, end, owner=by_line[int(plan.line[i])], entries=entries, spec=spec)
        for i, end in enumerate(ends)
    ]
    return StepView(
        tuple(plan.page_copies),
        tuple(plan.swa_copies),
        tuple(plan.ring_copies),
        tuple(rows),
        entries,
    )


def _row(
    plan: PlanArrays, i: int, end: int, *, owner: int, entries: Sequence[int], spec: TreeSpec
) -> RowView:
    start, count = int(plan.chunk_start[i]), int(plan.chunk_len[i])
    replay = int(plan.window_from[i])
    first = max(0, replay, start - (spec.window - 1))
    saves = [
        SaveView(
            position := int(plan.save_position[k]),
            int(plan.save_ring[k]),
            _window(plan.save_window[k], max(0, replay, position - spec.window), position, spec),
        )
        for k in np.flatnonzero(plan.save_row == i)
    ]
    spans = [span for span in plan.spans if span.row == i]
    fed = bool(plan.feed[i])
    return RowView(
        owner,
        start,
        count,
        () if fed else tuple(plan.input_ids[end - count : end].tolist()),
        owner if fed else None,
        tuple(plan.page_table[i][: div_ceil(start + count, spec.page_size)].tolist()),
        int(plan.write_from[i]),
        replay,
        _window(plan.window[i], first, start, spec),
        int(plan.ring[i]),
        tuple(saves),
        tuple(entries[int(k)] for k in np.flatnonzero(plan.sampled == i)),
        _prompt(spans[0]) if spans else (),
    )


def _window(slots: np.ndarray, first: int, end: int, spec: TreeSpec) -> tuple[int, ...]:
    """Return the SWA pages of positions [first, end), of a ring of slots; 0 for one not read."""
    pages = range(first // spec.swa_page_size, div_ceil(end, spec.swa_page_size))
    if first == end:
        return (0,) * len(pages)
    return tuple(int(slots[page % len(slots)]) for page in pages)


def _prompt(span: PromptSpan) -> tuple[tuple[int, ...], ...]:
    targets = tuple(unpacked(span.targets, INT32).tolist())
    head = (span.start, span.start + len(targets), span.top)
    return head, targets, tuple(unpacked(span.ids, INT32).tolist())


def lines(step: int, view: StepView) -> list[str]:
    """Return a step as text: a line for it, one a row."""
    head = f"step {step}"
    named = (("page", view.page_copies), ("swa", view.swa_copies), ("ring", view.ring_copies))
    for name, pairs in named:
        if pairs:
            head += f", copy {name} " + " ".join(f"{a}>{b}" for a, b in pairs)
    return [head, *(_line(row) for row in view.rows)]


def _line(row: RowView) -> str:
    fed = "".join(LETTERS[t] for t in row.tokens)
    if row.sampled_by is not None:
        fed = "last" if row.sampled_by == row.request else f"last of r{row.sampled_by}"
    parts = [f" r{row.request} at {row.start} +{row.count} {fed}", f"pages {numbers(row.pages)}"]
    if row.write_from:
        parts.append(f"write from {row.write_from}")
    if row.replay:
        parts.append(f"replay from {row.replay}")
    parts.append(f"window {numbers(row.window)} ring {row.ring}")
    parts += [f"save {s.position} ring {s.ring} window {numbers(s.window)}" for s in row.saves]
    if row.sampled:
        parts.append("sample " + " ".join(f"r{r}" for r in row.sampled))
    if row.prompt:
        parts.append("prompt " + " / ".join(numbers(part) for part in row.prompt))
    return ", ".join(parts)


def numbers(values: Iterable[int]) -> str:
    """Return integers in one word."""
    return ".".join(str(v) for v in values) or "-"
