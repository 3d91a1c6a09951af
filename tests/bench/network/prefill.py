"""Whole prompts by chunks through `QuantisedV4.prefill`."""

import statistics
import time
from collections.abc import Callable

import torch

from layers.experts.contract import ExpertForm
from layers.models.deepseek_v4.config import pool_spec
from layers.models.deepseek_v4.model import QuantisedV4
from tests.bench.network.clock import stage, wait
from tests.bench.network.report import Figures
from tests.bench.network.units import RowUnits, forward_batch, packed_steps

__all__ = ["measure_prefill", "prompt_run"]


def prompt_run(network: QuantisedV4, *, prompt: int, rows: int, chunk: int) -> Callable[[], None]:
    """Return what computes `rows` prompts of random tokens from nothing and waits for the logits.

    chunk  tokens of all rows together in a step
    """
    config, device = network.config, network.device
    spec = pool_spec(config, "fp8")
    units, pools = RowUnits.scattered(spec, rows=rows, tokens=prompt, device=device)
    tokens = torch.randint(config.vocab_size, (rows, prompt))
    batches = [
        forward_batch(units, chunks, tokens, page_size=spec.tree.page_size)
        for chunks in packed_steps(prompt=prompt, rows=rows, budget=chunk)
    ]

    def run() -> None:
        for batch in batches:
            network.prefill(batch, pools)
        wait(device)

    return run


def measure_prefill(
    network: QuantisedV4, *, prompt: int, rows: int, chunk: int, form: ExpertForm, repeats: int
) -> Figures:
    """Return tokens a second: the median of `repeats` runs after one that compiles."""
    run = prompt_run(network, prompt=prompt, rows=rows, chunk=chunk)
    with stage(f"first run of {rows} x {prompt} by {chunk}", network.device):
        run()
    times: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    seconds = statistics.median(times)
    return Figures(
        phase="prefill",
        experts=form,
        rows=rows,
        tokens=prompt,
        chunk=chunk,
        ms=seconds * 1e3,
        tokens_per_s=rows * prompt / seconds,
        deterministic=network.deterministic,
    )
