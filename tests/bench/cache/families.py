"""Hit rates of other families at equal bytes, beside SGLang's own caches.

    python -m tests.bench.cache.families --bench ../shared/bench/cache [--peers DIR] [--sessions N]

Without windows only the number of tokens counts that fit: a table for each pool size stands for
Qwen3, Llama, V2, V3 and V3.2 alike, and the peer is SGLang's `RadixCache` with pages of one token.
For gpt-oss it is `UnifiedRadixCache` with pages of 256 tokens, whose window pool has four fifths
of the full pool's tokens (SGLang's own default). Traces: the shared benchmark's, and `sharegpt`,
chats with lengths as ShareGPT's are described (`sharegpt_trace`). Run it with the Python of the
peers: `PEERS/venv/bin/python`.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from layers.models.gpt_oss.pools import WindowLayout
from layers.models.plain_model import CPU_PAGE_TOKENS
from mem_cache.spec import CacheSpec, Paged
from tests.bench.cache.replay import RUNNING, load_trace, run_trace
from tests.bench.cache.served import ServedFamily
from tests.bench.cache.sglang_radix import SglangRadix

# Bytes of a token in all layers in bfloat16; V3.2's are packed.
TOKEN_BYTES = {"qwen3-8b": 147_456, "llama-3.1-8b": 131_072, "v3": 70_272, "v3.2": 48_068}
PAGE = 256
WINDOW_SHARE = 0.8
# Full pages that the budget of a family without windows has; 2 M tokens are the benchmark's.
POOLS = (8192, 32768)
GPT_OSS = WindowLayout((True, False) * 12, 128, 8, 64, torch.bfloat16).cache("bf16", 0)


def sharegpt_trace(*, seed: int, sessions: int, active: int) -> Iterator[Any]:
    """Yield the events of chats: turns of 161 tokens on average, answers of 338.

    Both are lognormal, as the histograms of the vLLM paper (figure 11) are skewed; a chat has three
    and a half turns on average, and nothing in common with others but 64 tokens of a system prompt.
    Events are those of `run_trace`.
    """
    draw = np.random.default_rng(seed)

    def words(count: int) -> np.ndarray:
        return draw.integers(0, 128_000, size=count, dtype=np.int32)

    def length(mean: float, sigma: float) -> int:
        return int(np.clip(np.exp(draw.normal(np.log(mean) - sigma**2 / 2, sigma)), 4, 2048))

    system = words(64)
    running: list[tuple[int, int, np.ndarray]] = []
    chats: list[tuple[np.ndarray, int]] = []
    made = request = 0
    while True:
        while len(chats) < active and made < sessions:
            chats.append((system, 1 + int(draw.poisson(2.5))))
            made += 1
        if running and (len(running) == RUNNING or not chats):
            number, turns, tokens = running.pop(int(draw.integers(len(running))))
            if turns:
                chats.append((tokens, turns))
            yield "finish", number
            continue
        if not chats:
            return
        history, turns = chats.pop(int(draw.integers(len(chats))))
        prompt, output = len(history) + length(161, 1.2), length(338, 0.9)
        tokens = np.concatenate((history, words(prompt + output - len(history))))
        request += 1
        running.append((request, turns - 1, tokens))
        yield "start", request, tokens, prompt, output


def unified_peer(bench: Path, full_pages: int) -> Any:
    """Return the shared benchmark's adapter of SGLang's cache of full and window layers."""
    sys.path.insert(0, str(bench))
    from adapters import SglUnified523  # pyright: ignore[reportMissingImports, reportUnknownVariableType]  # fmt: skip

    class Peer(SglUnified523):  # pyright: ignore[reportUntypedBaseClass]
        """The adapter; the driver's tokens are made its own."""

        lost: ClassVar[dict[str, int]] = {}

        def match(self, tokens: Any, length: int) -> Any:
            return super().match(self.prep(tokens), length)

        def insert(self, row: Any, upto: int, finished: bool) -> None:
            if isinstance(row.toks, np.ndarray):
                row.toks = self.prep(row.toks)
            row.req.toks = row.req.full_untruncated_fill_ids = row.toks
            super().insert(row, upto, finished)

    return Peer(full_pages, int(full_pages * WINDOW_SHARE), RUNNING + 1)


def compare(
    title: str, traces: Callable[[int], Iterator[Any]], seeds: list[int], **caches: Any
) -> None:
    """Print the mean hit rate of each cache over the seeds; `caches` are made anew for each."""
    rates = {
        name: statistics.mean(run_trace(make(), traces(seed)).hit for seed in seeds)
        for name, make in caches.items()
    }
    shown = " ".join(f"{name} {rate:.4f}" for name, rate in rates.items())
    print(f"{title}: {shown}", flush=True)


def main() -> None:
    """Parse the command line and print a line for each geometry, pool size and trace."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cache.families")
    parser.add_argument("--bench", type=Path, required=True, help="folder of the shared benchmark")
    parser.add_argument("--peers", type=Path, default=Path.home() / ".cache/umbra-peers")
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--families", nargs="+", default=["qwen3-8b", "gpt-oss-20b"])
    options = parser.parse_args()
    os.environ["PEERS"] = str(options.peers)
    shared = load_trace(options.bench)
    traces = {
        "shared": lambda seed: shared(seed=seed, sessions=options.sessions, active=256),
        "sharegpt": lambda seed: sharegpt_trace(
            seed=seed, sessions=8 * options.sessions, active=256
        ),
    }
    for family in options.families:
        for pages in POOLS:
            for name, trace in traces.items():
                # Chats are short: a small pool is under the same pressure.
                count = pages // 32 if name == "sharegpt" else pages
                title = f"{family} {name} {count * PAGE:,} tokens"
                compare(title, trace, options.seeds, **caches_of(family, count, options))


def caches_of(family: str, pages: int, options: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """Return what makes our cache and the peer's, in equal bytes."""
    if family == "gpt-oss-20b":
        each = GPT_OSS.full_page_bytes + WINDOW_SHARE * 4 * GPT_OSS.swa_page_bytes
        return {
            "umbra": lambda: ServedFamily(GPT_OSS, int(pages * each), RUNNING + 1),
            "sglang": lambda: unified_peer(options.bench, pages),
        }
    size, budget = CPU_PAGE_TOKENS, pages * PAGE * TOKEN_BYTES[family]
    paged = (Paged("kv", size * TOKEN_BYTES[family]),)
    spec = CacheSpec("bf16", paged=paged, page_size=size, swa_page_size=size)
    return {
        "umbra": lambda: ServedFamily(spec, budget, RUNNING + 1),
        "sglang": lambda: SglangRadix(options.bench, options.peers, pages * PAGE),
    }


if __name__ == "__main__":
    main()
