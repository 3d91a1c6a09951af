"""Load a server, report what it did.

    python -m tests.bench.serving multi-turn --url http://127.0.0.1:30000 --flush-cache
    python -m tests.bench.serving shared-prefix --api completions --request-rate 8
    python -m tests.bench.serving long-context --lengths 65536 --max-concurrency 1 --csv runs.csv

Any server will do that has SGLang's `/generate` or OpenAI's `/v1/completions` or
`/v1/chat/completions`. Prompts go as token ids where the endpoint takes them, so that any two
servers get the same requests; answers are greedy, and as long as asked. The ideal hit rate is
what a cache would reach that forgets nothing, shares a prompt from the moment it is sent, and was
empty before: without `--flush-cache` a repeated run finds more.
Percentiles are values that occurred, by rank.
"""

import asyncio
import random
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import httpx
from tqdm import tqdm

from tests.bench.serving.client import Client
from tests.bench.serving.dialects import Dialect, make_dialect
from tests.bench.serving.machine import commit, machine
from tests.bench.serving.options import Options, parse
from tests.bench.serving.plots import NoMatplotlib, load_matplotlib, write_plots
from tests.bench.serving.prompt import Asked
from tests.bench.serving.record import append_csv, figures, request_row, write_json
from tests.bench.serving.report import report
from tests.bench.serving.runner import Arrival, Runner
from tests.bench.serving.server_facts import DEFAULT_VOCAB_SIZE, ServerFacts, ask_facts
from tests.bench.serving.summary import Summary, by_group, ideal_hits, summarise
from tests.bench.serving.workload import Call, Workload


def main(argv: Sequence[str]) -> int:
    """Run what `argv` asks for; 0 if every request succeeded, 1 if not."""
    options = parse(argv)
    try:
        if options.plot is not None:
            load_matplotlib()
        return asyncio.run(_main(options))
    except (NoMatplotlib, RuntimeError, ValueError, httpx.HTTPError) as fault:
        print(f"error: {type(fault).__name__}: {fault}", file=sys.stderr)
        return 1


async def _main(options: Options) -> int:
    key = options.api_key
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with Client(options.url, headers=headers, timeout_s=options.timeout) as client:
        server = await ask_facts(client)
        asked = await _play(options, client, server)
    hits = ideal_hits(asked)
    summary, groups = summarise(asked, hits), by_group(asked, hits)
    print(report(options.workload, server, summary, groups))
    _keep(options, server, asked, summary, groups)
    return 1 if summary.errors else 0


async def _play(options: Options, client: Client, server: ServerFacts) -> list[Asked]:
    vocab_size = options.vocab_size or server.vocab_size or DEFAULT_VOCAB_SIZE
    # Another workload of the same seed must not find its beginnings in the cache.
    rng = random.Random(f"{options.workload} {options.seed}")
    workload = options.recipe.build(rng, vocab_size)
    dialect = make_dialect(
        options.api,
        options.model or server.model,
        extra=options.extra_body,
        plain=options.plain_openai,
    )
    await _warm_up(options, client, dialect, workload, vocab_size)
    if options.flush_cache and await client.flush() is None:
        raise RuntimeError("--flush-cache: this server has no call for it")
    rate = None if options.request_rate == float("inf") else options.request_rate
    with tqdm(
        total=len(workload.calls), unit="request", disable=True if options.quiet else None
    ) as bar:
        runner = Runner(client, dialect, seed=options.seed, on_end=lambda _: bar.update())
        return await runner.run(workload, Arrival(rate, options.max_concurrency))


async def _warm_up(
    options: Options, client: Client, dialect: Dialect, workload: Workload, vocab_size: int
) -> None:
    """Send prompts as long as the first ones, which share nothing with them."""
    rng = random.Random(f"warm-up {options.seed}")
    calls = [
        Call(rng.choices(range(vocab_size), k=len(call.system) + len(call.user)), 8)
        for call in (workload.calls[root] for root in workload.roots[: options.warmup_requests])
    ]
    for one in await Runner(client, dialect).run(Workload("warm-up", calls), Arrival()):
        if one.outcome.error is not None:
            raise RuntimeError(f"a warm-up request failed: {one.outcome.error}")


def _keep(
    options: Options,
    server: ServerFacts,
    asked: list[Asked],
    summary: Summary,
    groups: dict[str, Summary],
) -> None:
    head = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "server": server.engine,
        "server_version": server.version,
        "model": server.model,
        "machine": options.machine or machine(),
        "workload": options.workload,
        "api": options.api,
    }
    if options.output_file is not None:
        document: dict[str, Any] = {
            **head,
            "options": options.told(),
            "figures": figures(summary),
            "groups": {name: figures(row) for name, row in groups.items()},
        }
        if options.output_details:
            document["requests"] = [request_row(one) for one in asked]
        write_json(options.output_file, document)
    if options.csv is not None:
        append_csv(options.csv, head, summary)
    if options.plot is not None:
        for path in write_plots(options.plot, asked, groups):
            print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
