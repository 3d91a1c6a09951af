"""Ask the model what it was trained for, and say how often it is right.

    python -m tests.evaluate --quick
    python -m tests.evaluate --conditions hit turn replay tombstone --kv fp8 fp32 bf16 --n 20
    python -m tests.evaluate --without window c4 c128 sinks --model-path FOLDER --json all.json
    python -m tests.evaluate --device cuda --conditions hit turn replay tombstone

The dialogues are made from seeds that training never uses. The same prompts are asked in every
state of the cache, in every KV format and of every network, so that differences are paired; each
state is proven by what the server counted, see `tests.evaluate.conditions`. On a GPU, answers may
differ where a choice was close: how close is measured, see `tests.evaluate.closeness`. With
--deterministic they may not.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import httpx
from tqdm import tqdm

from tests.bench.serving.machine import commit, machine
from tests.bench.serving.plots import NoMatplotlib, load_matplotlib
from tests.evaluate.case import Case, make_cases, make_cells
from tests.evaluate.conditions import SMALL_POOLS, Outcome, ask_all, ask_cold
from tests.evaluate.options import Options, parse
from tests.evaluate.plots import write_plot
from tests.evaluate.record import write_card, write_csv, write_json
from tests.evaluate.report import report
from tests.evaluate.results import Results
from tests.evaluate.server import HttpServer, ServerFault
from tests.evaluate.variants import DEFAULT, Variant, make_variants, no_cache, served, unfit


def main(argv: Sequence[str]) -> int:
    """Run what `argv` asks for; return the exit code.

    What there is by then is reported and kept, whatever ends it.
    """
    options, results, code = parse(argv), Results(), 0
    try:
        if options.plot is not None:
            load_matplotlib()
        evaluate(options, results)
    except (NoMatplotlib, ServerFault, httpx.HTTPError) as fault:
        print(f"error: {type(fault).__name__}: {fault}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    if results.outcomes:
        print(report(results))
        code = code if _keep(options, results) else code or 1
    return code


def evaluate(options: Options, results: Results) -> None:
    """Ask every case of every variant, and add what came. Raises ServerFault, httpx.HTTPError."""
    cells = make_cells(options.tasks, options.distances, options.n)
    cases = list(make_cases(cells, seed=options.seed, thinking=options.thinking))
    # The longest last, so that an interrupted evaluation has most of the table.
    cases.sort(key=lambda case: case.distance or 0)
    waiting = make_variants(options.kv, options.without, options.flags())
    while waiting:
        variant = waiting.pop(0)
        why = unfit(variant, results.device)
        if why is not None:
            results.left_out[variant.name] = why
            continue
        with _server(options, variant) as server:
            if variant.name == DEFAULT:
                results.facts = server.facts
                if _wants_noise(options, results):
                    waiting.insert(0, no_cache(options.flags()))
            asked = _asked(options, variant, cases, server)
            count = _count(options, variant, cases)
            # None: no bar where nobody looks.
            hidden = True if options.quiet else None
            for one in tqdm(asked, variant.name, count, leave=False, disable=hidden):
                results.outcomes.append(one)


def _wants_noise(options: Options, results: Results) -> bool:
    """Say whether to ask a server without a cache, too: off the CPU, its bits may be others."""
    asked = any(name != "cold" for name in options.conditions)
    return asked and options.url is None and results.device != "cpu"


@contextlib.contextmanager
def _server(options: Options, variant: Variant) -> Iterator[HttpServer]:
    """Return the server at `--url`, or start the variant's."""
    with contextlib.ExitStack() as stack:
        url = options.url
        if url is None:
            flags = SMALL_POOLS if _conditions(options, variant) else ()
            url = stack.enter_context(served(variant, options.model_path, *flags))
        server = HttpServer(url, max_tokens=options.max_tokens, api_key=options.api_key)
        yield stack.enter_context(server)


def _conditions(options: Options, variant: Variant) -> tuple[str, ...]:
    """Return the states of the cache in which a variant is asked, besides cold."""
    if variant.name != DEFAULT:
        return ()
    return tuple(name for name in options.conditions if name != "cold")


def _asked(
    options: Options, variant: Variant, cases: Sequence[Case], server: HttpServer
) -> Iterator[Outcome]:
    """Yield the outcomes of all cases; one at a time where counters have to tell them apart."""
    conditions = _conditions(options, variant)
    if conditions:
        for case in cases:
            yield from ask_all(case, server, variant.name, conditions)
        return
    with ThreadPoolExecutor(options.concurrency) as pool:
        yield from pool.map(lambda case: ask_cold(case, server, variant.name), cases)


def _count(options: Options, variant: Variant, cases: Sequence[Case]) -> int:
    """Return how many outcomes there will be at most."""
    return len(cases) * (1 + len(_conditions(options, variant)))


def _keep(options: Options, results: Results) -> bool:
    """Write the files that are asked for; tell which could not be, and return whether all were."""
    head = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "model": None if options.model_path is None else options.model_path.name,
        "options": options.told(),
    }
    good = True
    for path, write in (
        (options.json, lambda path: write_json(path, head, results)),
        (options.csv, lambda path: write_csv(path, results)),
        (options.card, lambda path: write_card(path, results)),
        (options.plot, lambda path: write_plot(path, results)),
    ):
        try:
            _ = path is None or write(path)
        except OSError as fault:
            print(f"error: {type(fault).__name__}: {fault}", file=sys.stderr)
            good = False
    return good


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
