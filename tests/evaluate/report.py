"""What a person reads: accuracy by task and distance, and what each change did to it."""

from collections.abc import Iterator, Sequence

from tests.evaluate.conditions import Outcome
from tests.evaluate.results import Results
from tests.evaluate.tally import Paired, Share, by_place, share
from tests.evaluate.variants import DEFAULT

_OWN_SIZE = "own size"


def report(results: Results) -> str:
    """Return all tables in markdown."""
    base = results.base()
    lines = [f"Server: {results.server()}", ""]
    lines += ["Right answers in per cent (95 % interval), default server, cold cache", ""]
    lines += [*accuracy_table(base), "", *_form_lines(base), "", *_goal_lines(results)]
    others = [run for run in results.runs() if run != (DEFAULT, "cold")]
    conditions = [condition for variant, condition in others if variant == DEFAULT]
    if conditions:
        lines += ["", "The same prompts met by the cache in other states", ""]
        lines += condition_table(results, ["cold", *conditions])
        lines += ["", *_margin_lines(results)]
    variants = [variant for variant, condition in others if condition == "cold"]
    if variants:
        lines += ["", "The same prompts, cold, on other servers: points against the default", ""]
        lines += variant_table(results, variants)
    if results.left_out:
        lines += ["", *(f"not asked: {name}: {why}" for name, why in results.left_out.items())]
    return "\n".join(lines)


def accuracy_table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield a table with a row for each task and a column for each distance."""
    cells = by_place(outcomes)
    distances = sorted({place for _, place in cells if place is not None})
    columns = [*distances, *([None] if any(place is None for _, place in cells) else [])]
    yield _row("task", *(_OWN_SIZE if place is None else str(place) for place in columns))
    yield _rule(len(columns))
    for row in sorted({row for row, _ in cells}, key=lambda row: ((row, None) in cells, row)):
        found = (cells.get((row, place)) for place in columns)
        yield _row(row, *("" if cell is None else percent(cell) for cell in found))


def condition_table(results: Results, conditions: Sequence[str]) -> Iterator[str]:
    """Yield a table of the default server's runs under each condition, against cold.

    proven  cases whose counters say that the condition was met, reused: of which something was
            reused at all; a prompt shorter than a replay is computed whole
    again   tokens computed although their pages were there, on average
    excused, faults   answers that differ: by a choice closer than the margin, and else
    same bits         log-probabilities, too, are equal; empty where none were told
    """
    names = ("asked", "proven", "reused", "cached %", "again", "right %", "points", "same tokens")
    names += ("excused", "faults", "same bits")
    bits_told = any(one.answer.choices for one in results.base())
    yield _row("condition", *names)
    yield _rule(len(names))
    for condition in conditions:
        run = results.of(DEFAULT, condition)
        paired = results.paired(DEFAULT, condition)
        met = [one.met for one in run if one.met is not None]
        prompt = sum(one.answer.prompt_tokens for one in run)
        cached = sum(one.answer.cached_tokens for one in run)
        yield _row(
            condition,
            str(len(run)),
            str(sum(one.happened for one in run)),
            str(sum(one.answer.cached_tokens > 0 for one in run)),
            f"{100 * cached / prompt:.1f}",
            f"{sum(one.again for one in met) / len(met):.0f}" if met else "",
            percent(share(one.verdict.right for one in run)),
            _points(paired),
            f"{paired.same_tokens}/{paired.n}",
            str(paired.excused),
            str(paired.faults),
            f"{paired.same_bits}/{paired.n}" if bits_told else "",
        )


def variant_table(results: Results, variants: Sequence[str]) -> Iterator[str]:
    """Yield a table of points gained or lost by each variant, by task.

    Answers of other arithmetic differ, so no margin is applied to them.
    """
    base = results.base()
    rows = list(dict.fromkeys(one.case.row for one in base))
    yield _row("task", DEFAULT, *variants)
    yield _rule(len(variants) + 1)
    changes = {variant: results.paired_rows(variant) for variant in variants}
    for row in rows:
        right = share(one.verdict.right for one in base if one.case.row == row)
        found = (changes[variant].get(row) for variant in variants)
        yield _row(row, percent(right), *("" if one is None else _points(one) for one in found))
    whole = {variant: results.paired(variant, "cold") for variant in variants}
    yield _row(
        "all",
        percent(share(one.verdict.right for one in base)),
        *(_points(one) for one in whole.values()),
    )
    yield _row("same tokens", "", *(f"{one.same_tokens}/{one.n}" for one in whole.values()))


def percent(told: Share) -> str:
    """Return a share as "96 (87-99)"."""
    return f"{100 * told.value:.1f} ({100 * told.low:.0f}-{100 * told.high:.0f})"


def _points(paired: Paired) -> str:
    return f"{paired.points:+.1f} ±{paired.error:.1f}"


def _margin_lines(results: Results) -> Iterator[str]:
    """Yield how close a choice must be to be excused, and why."""
    noise = results.noise()
    if noise is not None:
        yield (
            f"arithmetic alone, on a server without a cache and in other steps: distances between "
            f"the two likeliest tokens differ by {noise.typical:.4f} nats (median), "
            f"{noise.most:.4f} at most, of {noise.n} tokens"
        )
    if results.exact:
        yield "margin: none, for the server promises the same bits"
    elif noise is None:
        yield "margin: none, for what arithmetic alone changes was not measured on this server"
    else:
        yield f"margin: {noise.most:.4f} nats: closer choices may fall either way"


def _form_lines(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield f"stopped by itself: {percent(share(one.verdict.stopped for one in outcomes))}"
    formed = [one for one in outcomes if one.verdict.valid is not None]
    for row in sorted({one.case.row for one in formed}):
        valid = share(bool(one.verdict.valid) for one in formed if one.case.row == row)
        yield f"valid, of {row}: {percent(valid)}"


def _goal_lines(results: Results) -> Iterator[str]:
    for name, wanted, told in results.goals():
        word = "reached" if told.value >= wanted else "missed"
        yield f"goal {name} {100 * wanted:.0f} %: {word}, {percent(told)} of {told.n}"


def _row(first: str, *cells: str) -> str:
    return "| " + " | ".join((first, *cells)) + " |"


def _rule(columns: int) -> str:
    return "|---" + "|---:" * columns + "|"
