"""One run: the server asked, warmed up and loaded, and what came of it kept."""

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tqdm import tqdm

from tests.bench.serving.client import Client
from tests.bench.serving.dialects import Dialect, make_dialect
from tests.bench.serving.machine import commit, machine
from tests.bench.serving.options import Options
from tests.bench.serving.plots import write_plots
from tests.bench.serving.prompt import Asked, Prompt
from tests.bench.serving.record import append_csv, figures, request_row, write_json
from tests.bench.serving.runner import Arrival, Runner
from tests.bench.serving.server_facts import DEFAULT_VOCAB_SIZE, ServerFacts, ask_facts
from tests.bench.serving.summary import Summary, by_group, ideal_hits, summarise
from tests.bench.serving.workload import Call, Workload

_WARMUP_TOKENS = 8
_PREFILLS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Played:
    """A run that has ended.

    asked   every call that was sent, in the order in which they ended
    groups  figures of each group of calls, by its name
    """

    options: Options
    server: ServerFacts
    asked: list[Asked]
    summary: Summary
    groups: dict[str, Summary]


async def play(options: Options) -> Played:
    """Return what came of the run that `options` ask for.

    Raises RuntimeError where it could not begin, ValueError for numbers that make no workload,
    aiohttp.ClientError where the server does not answer.
    """
    key = options.api_key
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with Client(options.url, headers=headers, timeout_s=options.timeout) as client:
        server = await ask_facts(client)
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
        known = await _prefill(client, dialect, workload) if options.prefill_first else []
        asked = await _load(options, client, dialect, workload)
    hits = ideal_hits(asked, known)
    return Played(options, server, asked, summarise(asked, hits), by_group(asked, hits))


async def _warm_up(
    options: Options, client: Client, dialect: Dialect, workload: Workload, vocab_size: int
) -> None:
    """Send prompts as long as the first ones, which share nothing with them."""
    rng = random.Random(f"warm-up {options.seed}")
    firsts = [workload.calls[root] for root in workload.roots[: options.warmup_requests]]
    calls = [
        # No longer than the call itself: a server may have room for just so many tokens.
        Call(
            rng.choices(range(vocab_size), k=len(call.system) + len(call.user)),
            min(call.output_tokens, _WARMUP_TOKENS),
        )
        for call in firsts
    ]
    await _send_untimed(client, dialect, calls, Arrival())


async def _prefill(client: Client, dialect: Dialect, workload: Workload) -> list[Sequence[int]]:
    """Have the cache take in the prompts that go on from nothing; return their ids."""
    firsts = [workload.calls[root] for root in workload.roots]
    calls = [dataclasses.replace(call, output_tokens=1) for call in firsts]
    await _send_untimed(client, dialect, calls, Arrival(concurrency=_PREFILLS_AT_ONCE))
    return [Prompt.begin(call).ids for call in firsts]


async def _send_untimed(
    client: Client, dialect: Dialect, calls: list[Call], arrival: Arrival
) -> None:
    for one in await Runner(client, dialect).run(Workload("untimed", calls), arrival):
        if one.outcome.error is not None:
            raise RuntimeError(f"a request before the run failed: {one.outcome.error}")


async def _load(
    options: Options, client: Client, dialect: Dialect, workload: Workload
) -> list[Asked]:
    rate = None if options.request_rate == float("inf") else options.request_rate
    with tqdm(
        total=len(workload.calls), unit="request", disable=True if options.quiet else None
    ) as bar:
        runner = Runner(client, dialect, seed=options.seed, on_end=lambda _: bar.update())
        return await runner.run(workload, Arrival(rate, options.max_concurrency))


def keep(played: Played) -> None:
    """Write what the options of the run say: a JSON document, a row of a CSV file, pictures.

    Raises ValueError for a CSV file with other columns, NoMatplotlib.
    """
    options, server = played.options, played.server
    head = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "server": server.engine,
        "server_version": server.version,
        "model": server.model,
        "machine": options.machine or machine(),
        "workload": options.workload,
        "numbers": options.numbers(),
        "api": options.api,
    }
    if options.output_file is not None:
        document: dict[str, Any] = {
            **head,
            "options": options.told(),
            "figures": figures(played.summary),
            "groups": {name: figures(row) for name, row in played.groups.items()},
        }
        if options.output_details:
            document["requests"] = [request_row(one) for one in played.asked]
        write_json(options.output_file, document)
    if options.csv is not None:
        append_csv(options.csv, head, played.summary)
    if options.plot is not None:
        for path in write_plots(options.plot, played.asked, played.groups):
            print(f"wrote {path}")
