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
import sys
from collections.abc import Sequence

import aiohttp

from tests.bench.serving.options import Options, parse
from tests.bench.serving.play import keep, play
from tests.bench.serving.plots import NoMatplotlib, load_matplotlib
from tests.bench.serving.report import report


def main(argv: Sequence[str]) -> int:
    """Run what `argv` asks for; 0 if every request succeeded, 1 if not."""
    options = parse(argv)
    try:
        if options.plot is not None:
            load_matplotlib()
        return asyncio.run(_main(options))
    except (NoMatplotlib, OSError, RuntimeError, ValueError, aiohttp.ClientError) as fault:
        print(f"error: {type(fault).__name__}: {fault}", file=sys.stderr)
        return 1


async def _main(options: Options) -> int:
    played = await play(options)
    print(report(options.workload, played.server, played.summary, played.groups))
    keep(played)
    return 1 if played.summary.errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
