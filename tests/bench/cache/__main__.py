"""The cache against its peers, on the shared trace.

    python -m tests.bench.cache --bench ../shared/bench/cache [--peers DIR] [--without-peers]

First the hit rates, under the ledger, for each seed; then requests per second, best of the
repeats, each implementation in a process of its own and all of them in turn; then the cost of
single calls and of large trees. `--peers` is where the benchmark's own `setup.sh` has put the
peers' code; everything runs under its Python. Floors, from the cache's specification:

    token hit rate           0.75, mean of five seeds, in the bytes of the benchmark's setting
    lost                     3 % of all prompt tokens
    requests per second      8 times those of the fastest peer
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.cache.adapter import Umbra
from tests.bench.cache.ledger import Ledger
from tests.bench.cache.replay import FULL_PAGES, RUNNING, SWA_PAGES, load_trace, run_trace
from tests.bench.cache.variants import UmbraLru

ROOT = Path(__file__).resolve().parents[3]
OURS = "umbra"
PEERS = ("sgl520-swa-radix", "sgl523-unified-rust", "vllm033", "vllm033-xxhash")
OPS = ("match", "lock", "alloc", "insert", "unlock")


def main() -> None:
    """Parse the command line and print all tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cache")
    parser.add_argument("--bench", type=Path, required=True, help="folder of the shared benchmark")
    parser.add_argument("--peers", type=Path, default=Path.home() / ".cache/umbra-peers")
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if not (options.bench / "workload.py").is_file():
        parser.error(f"--bench {options.bench}: there is no workload.py")
    print_hits(options)
    print_speed(options)
    print_calls(options)


def print_hits(options: argparse.Namespace) -> None:
    """Print the hit rates of all seeds, and what was lost by cause."""
    trace = load_trace(options.bench)
    for kind in (Ledger, UmbraLru):
        hits: list[float] = []
        for seed in options.seeds:
            cache: Umbra = kind(FULL_PAGES, SWA_PAGES, RUNNING + 1)
            rates = run_trace(cache, trace(seed=seed, sessions=options.sessions, active=256))
            hits.append(rates.hit)
            lost = ", ".join(f"{cause} {share:.4f}" for cause, share in rates.lost.items())
            print(f"{kind.name} seed {seed}: hit {rates.hit:.4f} full {rates.full:.4f}; {lost}")
            if isinstance(cache, Ledger):
                print(f"  ledger: {cache.hits_checked} pages of hits hold their tokens")
        print(f"{kind.name} mean hit rate {statistics.mean(hits):.4f} (floor 0.75)\n", flush=True)


def print_speed(options: argparse.Namespace) -> None:
    """Print requests per second of every implementation, all in one run."""
    names = (OURS, *(() if options.without_peers else PEERS))
    best: dict[str, Any] = {}
    for _ in range(options.repeats):
        for name in names:
            found = _bench(options, "e2e", name, "--sessions", str(options.sessions))
            if name not in best or found["req_per_s"] > best[name]["req_per_s"]:
                best[name] = found
    print("| implementation | req/s | us/req | " + " | ".join(OPS) + " | worst ms | hit rate |")
    print("|---" * (5 + len(OPS)) + "|")
    for name, found in best.items():
        ops = " | ".join(f"{found['us_per_req_by_op'][op]:.1f}" for op in OPS)
        print(
            f"| {name} | {found['req_per_s']:,.0f} | {found['us_per_req']:.1f} | {ops} | "
            f"{max(found['worst_ms'].values()):.2f} | {found['hit_rate']:.4f} |"
        )
    peers = [found["req_per_s"] for name, found in best.items() if name != OURS]
    if peers:
        ratio = best[OURS]["req_per_s"] / max(peers)
        print(f"\n{ratio:.1f} times the fastest peer (floor 8)")
    print(flush=True)


def print_calls(options: argparse.Namespace) -> None:
    """Print what single calls cost, and how cost and memory grow with the tree."""
    micro = _bench(options, "micro", OURS)
    for shape, found in micro["match"].items():
        print(f"match {shape}: {found['us_median']:.1f} us, hit {found['hit']}")
    for kind, found in micro["evict"].items():
        print(f"evict {kind}: {found['us_per_page']:.2f} us a page")
    for pages, points in ((1, (1000, 100_000, 1_000_000)), (32, (3200, 320_000))):
        scale = _bench(
            options, "scale", OURS, "--pages-per-seq", str(pages), "--points", *map(str, points)
        )
        for point in scale["points"]:
            print(
                f"{point['pages']:,} pages, {pages} a node: {point['us_per_new_seq']:.1f} us a new "
                f"sequence, {point['us_match_small']:.1f} us a match, "
                f"{point['rss_bytes_per_cached_token']:.2f} bytes a token"
            )
        print(f"  eviction at the top: {scale['us_per_page_evict_2048']:.2f} us a page")


def _bench(options: argparse.Namespace, mode: str, name: str, *more: str) -> dict[str, Any]:
    """Run the shared benchmark in a process of its own and return what it measured."""
    python = options.peers / "venv/bin/python"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        environment = os.environ | {
            "PEERS": str(options.peers),
            "PYTHONPATH": str(ROOT),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PEER_EXTRA_ADAPTER": "tests.bench.cache.adapter:Umbra",
        }
        command = [str(python) if python.exists() else sys.executable, "-W", "ignore", "bench.py"]
        subprocess.run(
            [*command, mode, "--impl", name, "--out", str(out), *more],
            cwd=options.bench,
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return json.loads(out.read_text())


if __name__ == "__main__":
    main()
