"""Five ways to attend to latent records, for one new token of each row, and two for prompts.

    python -m tests.bench.mla_variants [--model v2_lite] [--batch 1,32] [--keys 32,...,8192]
                                       [--dtype float32] [--device cpu] [--csv FILE]
    python -m tests.bench.mla_variants --prefill [--tokens 256,1024] [--keys 1024,4096]

    CD        keys and values of all heads are cached
    CC        latents are cached, and expanded to keys and values in every step
    A_CC      absorbed: queries move to the latents; latents and turned channels are joined
    A_CC_ME   absorbed, two products instead of one with joined records
    AM_CC_ME  the same, with the weights of queries and keys, and of values and output, multiplied

One attention module is measured: projections of queries, attention, output. Rotations are left out;
all variants have the same. First all are compared with CD. `--prefill` compares the network's own
absorbed attention with expanding the records of all positions first, on the CPU.
"""

import argparse
import csv
from pathlib import Path

import torch
from torch.utils.benchmark import Timer

from tests.bench.mla_variants.prompts import prefill
from tests.bench.mla_variants.variants import SHAPES, Module, faults, variants

CHECK_ROWS, CHECK_KEYS = 16, 1024
COLUMNS: tuple[str, ...] = (
    *("variant", "batch", "keys", "mean_ms", "median_ms", "p25_ms", "p75_ms"),
    "cache_bytes",
)


def decode(module: Module, args: argparse.Namespace) -> list[dict[str, object]]:
    """Print and return a row of each variant, batch and number of keys."""
    rows: list[dict[str, object]] = []
    itemsize, most = module.down.itemsize, args.memory_gb * 1e9
    for batch, keys in ((b, k) for b in args.batch for k in args.keys):
        made = variants(module, batch, keys)
        for name, run in made.all().items():
            cached = batch * keys * module.shape.costs(name, itemsize)[0]
            wide = batch * keys * module.shape.costs("CD", itemsize)[0]
            if (wide * 2 if name == "CC" else cached) > most:
                continue
            if name == "CD":
                made.cache_expanded()
            timed = Timer("run()", globals={"run": torch.inference_mode()(run)})
            times = timed.blocked_autorange(min_run_time=args.seconds)
            made.drop_expanded()
            quarters = torch.tensor(times.times).quantile(torch.tensor([0.25, 0.75]))
            ms = (1e3 * t for t in (times.mean, times.median, *quarters.tolist()))
            rows.append(dict(zip(COLUMNS, (name, batch, keys, *ms, cached), strict=True)))
            print(
                f"{name:<9} {batch:4} rows {keys:7} keys {1e3 * times.median:10.3f} ms", flush=True
            )
    return rows


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser.add_argument("--model", choices=SHAPES, default="v2_lite")
    parser.add_argument("--batch", type=numbers, default=[1, 32])
    parser.add_argument("--keys", type=numbers, default=[2**n for n in range(5, 14)])
    parser.add_argument("--tokens", type=numbers, default=[256, 1024])
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--memory-gb", type=float, default=4.0)
    parser.add_argument("--prefill", action="store_true")
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    shape, dtype = SHAPES[args.model], getattr(torch, args.dtype)
    if args.prefill:
        for tokens, keys in ((t, k) for t in args.tokens for k in args.keys):
            absorbed, expanded = prefill(shape, tokens, keys, dtype)
            print(
                f"{tokens:6} tokens behind {keys:6}: absorbed {absorbed:9.1f} ms, "
                f"expanded {expanded:9.1f} ms",
                flush=True,
            )
        return
    module = Module(shape, dtype, args.device)
    for name, (norm, worst) in faults(module, CHECK_ROWS, CHECK_KEYS).items():
        cached, pair, query = shape.costs(name, dtype.itemsize)
        print(
            f"{name:<9} {cached:7,} bytes a token, {pair:12,} FLOP a token and query, "
            f"{query:11,} a query; from CD {norm:.1e}, at worst {worst:.1e}"
        )
    rows = decode(module, args)
    if args.csv:
        with args.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
