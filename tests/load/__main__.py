"""Load on a real server of the default model, on the CPU, and what must be true of it.

    python -m tests.load clients  [--requests 10000] [--clients 1000]
    python -m tests.load overload [--seconds 600] [--times 10]

Prints a table of figures and bounds; exits with 1 if one is missed. See tests/README.md.
"""

import argparse
import sys

from tests.load.asks import Sizes
from tests.load.clients import Crowd, measure_clients
from tests.load.lines import Line, table
from tests.load.overload import Flood, measure_overload
from tests.testing.server_process import running_server

# Few enough that every page is soon in use.
POOL_TOKENS = 1 << 17


def main(argv: list[str]) -> int:
    """Run one load and print its table; return the exit code."""
    options = _options(argv)
    sizes = Sizes(options.prompt_tokens, options.new_tokens)
    rows, queued = options.rows, options.queued
    bounds = ("--max-running-requests", str(rows), "--max-queued-requests", str(queued))
    flags = (*bounds, "--max-total-tokens", str(POOL_TOKENS))
    with running_server(*flags, check=False) as server:
        lines: list[Line]
        if options.load == "clients":
            lines = measure_clients(
                server,
                Crowd(
                    options.requests,
                    options.clients,
                    rows,
                    options.seed,
                    sizes,
                    calm_s=options.calm_seconds,
                ),
            )
        else:
            lines = measure_overload(
                server,
                Flood(options.seconds, options.times, rows, queued, options.seed, sizes),
            )
    print(table(lines))
    return 0 if all(line.holds for line in lines) else 1


def _options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.load",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    loads = parser.add_subparsers(dest="load", required=True)
    clients = loads.add_parser("clients", help="clients that dawdle, vanish, abort, read slowly")
    clients.add_argument("--requests", type=int, default=10_000)
    clients.add_argument("--clients", type=int, default=1_000)
    clients.add_argument("--calm-seconds", type=float, default=40.0, help="with full rows alone")
    overload = loads.add_parser("overload", help="more requests than can be computed")
    overload.add_argument("--seconds", type=float, default=600.0, help="of the overload")
    overload.add_argument("--times", type=float, default=10.0, help="the capacity")
    for one, rows, queued in ((clients, 64, 1024), (overload, 16, 64)):
        one.add_argument("--seed", type=int, default=0)
        one.add_argument("--rows", type=int, default=rows, help="--max-running-requests")
        one.add_argument("--queued", type=int, default=queued, help="--max-queued-requests")
        one.add_argument("--prompt-tokens", type=int, default=48)
        one.add_argument("--new-tokens", type=int, default=16)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
