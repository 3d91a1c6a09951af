"""Time of the network's steps on the CPU for one row: decode by context, prefill, and their parts.

    python -m tests.bench.host_step [--model FOLDER] [--contexts 1024,4096,16384] [--parts]

Without a folder the default model is taken. Prints, per context, the thread CPU time and the wall
time of a decode step (least and median of `--steps`), and of each 1,024 tokens of prefill the rate
on both clocks; `--parts` splits a decode step and the prefill by op. Thread CPU time counts the
thread that calls: it is the time of the whole step where the network computes on one thread.
"""

import argparse
import contextlib
import functools
import pkgutil
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import jit_kernels
from layers.models.deepseek_v4.config import resolve_record_format
from runtime.default_model.folder import default_model_folder
from runtime.heap import keep_freed_memory
from tests.testing.direct import Direct, Row, load_model

CHUNK = 2048
OPS = tuple(name for _, name, package in pkgutil.iter_modules(jit_kernels.__path__) if package)


class Clock:
    """CPU and wall time between two calls, in ms."""

    def __init__(self) -> None:
        self._cpu_ns, self._wall_ns = time.thread_time_ns(), time.perf_counter_ns()

    def read(self) -> tuple[float, float]:
        """Return (thread CPU time, wall time) since it was made."""
        cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
        return (cpu - self._cpu_ns) / 1e6, (wall - self._wall_ns) / 1e6


@contextlib.contextmanager
def timed_ops(times: dict[str, list[float]]) -> Iterator[None]:
    """Let every call of an op from `layers` add its CPU time in ms to `times`, by name."""
    replaced: list[tuple[Any, str, Any]] = []

    def timed(name: str, op: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(op)
        def call(*args: Any, **kwargs: Any) -> Any:
            clock = Clock()
            result = op(*args, **kwargs)
            times[name].append(clock.read()[0])
            return result

        return call

    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith("layers."):
            continue
        for name, value in list(vars(module).items()):
            origin = getattr(value, "__module__", "") or ""
            if (
                callable(value)
                and origin.startswith("jit_kernels.")
                and not isinstance(value, type)
            ):
                replaced.append((module, name, value))
                setattr(module, name, timed(name, value))
    try:
        yield
    finally:
        for module, name, value in replaced:
            setattr(module, name, value)


def make(folder: Path, dtype: torch.dtype, context: int) -> Direct:
    """Return the network of `folder` with room for one row of `context` tokens."""
    model = load_model(folder, dtype)
    name = {torch.float32: "float32", torch.bfloat16: "bfloat16"}[dtype]
    record_format = resolve_record_format(model.config, "auto", name)
    return Direct(model, record_format, full_pages=context // 256 + 6)


def prefill(direct: Direct, context: int) -> tuple[Row, tuple[float, float]]:
    """Compute a row of `context` random tokens; return it, and its (CPU, wall) ms."""
    vocab = direct.model.config.vocab_size
    row = direct.row(torch.randint(vocab, (context,)).tolist())
    clock = Clock()
    direct.prefill(row, chunk=CHUNK, logits=[context - 1])
    return row, clock.read()


def decode(direct: Direct, row: Row, steps: int) -> list[tuple[float, float]]:
    """Decode `steps` tokens; return the (CPU, wall) ms of each."""
    times: list[tuple[float, float]] = []
    token = 1
    for _ in range(steps):
        row.tokens.append(token)
        clock = Clock()
        token = int(direct.decode([row])[0].argmax())
        times.append(clock.read())
    return times


def report_parts(title: str, times: dict[str, list[float]], steps: int, whole_ms: float) -> None:
    """Print the ops' share of `whole_ms`, per step, greatest first."""
    print(f"  {title}: {whole_ms:.2f} ms of CPU, of which")
    for name, spent in sorted(times.items(), key=lambda item: -sum(item[1])):
        each, calls = sum(spent) / steps, len(spent) / steps
        print(f"    {name:<20} {each:9.3f} ms in {calls:6.1f} calls")
    print(f"    {'between ops':<20} {whole_ms - sum(map(sum, times.values())) / steps:9.3f} ms")


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--contexts", default="1024,4096,16000")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--parts", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    contexts = [int(part) for part in args.contexts.split(",")]
    folder = args.model or default_model_folder()
    direct = make(folder, getattr(torch, args.dtype), max(contexts) + 4 * args.steps)
    with torch.inference_mode():
        warm, _ = prefill(direct, 300)
        decode(direct, warm, 5)
        direct.release(warm)
        for context in contexts:
            report(direct, context, args)


def report(direct: Direct, context: int, args: argparse.Namespace) -> None:
    """Print the rows of one context."""
    row, (cpu, wall) = prefill(direct, context)
    times = decode(direct, row, args.steps)
    least, median = (tuple(map(f, zip(*times, strict=True))) for f in (min, statistics.median))
    print(
        f"context {context:>6}: decode {least[0]:6.2f} ms CPU, {least[1]:6.2f} ms wall at best, "
        f"{median[0]:6.2f} / {median[1]:6.2f} ms median; prefill {context / cpu * 1e3:,.0f} "
        f"tokens/s of CPU, {context / wall * 1e3:,.0f} of wall time"
    )
    if args.parts:
        parts: dict[str, list[float]] = defaultdict(list)
        with timed_ops(parts):
            spent = decode(direct, row, args.steps)
        whole = statistics.fmean(cpu for cpu, _ in spent)
        report_parts("a decode step", parts, args.steps, whole)
        direct.release(row)
        parts.clear()
        with timed_ops(parts):
            row, (cpu, _) = prefill(direct, context)
        report_parts("the prefill", parts, 1, cpu)
    direct.release(row)


if __name__ == "__main__":
    main()
