"""Measures networks of pages and windows (Llama, Qwen, DeepSeek, gpt-oss) with random weights.

On a GPU:

    decode    steps inside a CUDA graph against their floor: weights that a step reads, the experts
              that it is routed to, what is cached, once each, at the bandwidth of a large copy
    prefill   prompts in one step each, against the rate of a large product of bfloat16 numbers

A step of decode is the network, the likeliest token of each row and the next position:

    python -m tests.bench.network.pages decode --batch 1 16 64 --context 4096
    python -m tests.bench.network.pages prefill --model tests/bench/network/llama_3_1_8b

With --profile, kernels by time instead. --layers cuts the network.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor

import layers.models.gpt_oss.experts as gpt_oss_network
import layers.models.gqa.network as gqa_network
import layers.models.mla.network as mla_network
from jit_kernels.likeliest import likeliest
from layers.models.contract import Settings
from layers.models.mla.sparse_pools import SparsePools
from layers.models.page_pools import PagePools
from layers.models.registry import read_model
from layers.steps.decode_rows import DecodeRows
from layers.steps.forward_batch import ForwardBatch
from layers.weights.loading import fill_dummy
from mem_cache.spec import PoolSizes, div_ceil
from tests.bench.kernels.timing import copy_bandwidth, graph_us
from tests.bench.network.clock import replayed, rest, stage, times_ms, wait
from tests.bench.network.kernels_run import gap_table, kernel_table, profiled
from tests.bench.network.page_counts import PageNetwork, prompt_flops, step_bytes

Route = Callable[..., tuple[Tensor, Tensor]]

FOLDER = Path(__file__).parent / "qwen3_8b"
SEED, PAGE = 7, 256
# Steps that are run around those that are timed.
OTHER_STEPS = 16
# Records that are packed at a time.
SOME = 1 << 18
# Rows and columns of the product that prefill is measured against.
LARGE = 8192


def main() -> None:
    """Measure what is asked for."""
    options = _parsed()
    override = cut(options.model, options.layers) if options.layers else None
    model = read_model(options.model, override)
    device = torch.device("cuda", 0)
    torch.manual_seed(SEED)
    with torch.inference_mode():
        network = cast(
            PageNetwork, model.build(device, Settings(deterministic=options.deterministic))
        )
        with stage("random weights", device):
            fill_dummy(network, SEED)
        for line in (_decode if options.phase == "decode" else _prefill)(options, network):
            print(line, flush=True)


def cut(folder: Path, layers: int) -> str:
    """Return what cuts a model to so many layers, of the kinds that its family has in turn."""
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return f"num_hidden_layers={layers}" + (",layer_types=null" if "layer_types" in raw else "")


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tests.bench.network.pages",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("phase", choices=("decode", "prefill"))
    parser.add_argument("--model", type=Path, default=FOLDER, help="folder with a config.json")
    parser.add_argument("--layers", type=int, default=0, help="of the network; 0: all")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64], help="rows of a step")
    parser.add_argument("--context", type=int, default=4096, help="tokens before it")
    parser.add_argument("--prompt", type=int, nargs="+", default=[8192], help="tokens of each")
    parser.add_argument("--replays", type=int, default=40, help="steps to time")
    parser.add_argument("--deterministic", action="store_true", help="the same bits in any company")
    parser.add_argument("--profile", action="store_true", help="kernels by time, and gaps")
    return parser.parse_args()


class Rows:
    """Rows of one length that share nothing, over scattered pages and windows of random numbers."""

    def __init__(self, network: PageNetwork, rows: int, tokens: int) -> None:
        """Fill the pages that `rows` rows of `tokens` tokens take."""
        self.network, columns = network, div_ceil(tokens, PAGE)
        width = network.cache.tree.window_pages
        self.pools: Any = network.pools(PoolSizes(rows * columns, rows * width, 0))
        _fill(self.pools)
        self.table, self.windows = (
            (torch.randperm(rows * units) + 1).to(torch.int32).view(rows, units)
            for units in (columns, width)
        )

    def decoder(self, rows: int, position: int) -> Callable[[], None]:
        """Return what runs a step of the first rows, each time one position further."""
        device, table = self.network.device, self.table[:rows]
        width = self.windows.shape[1]
        inputs = DecodeRows.empty(rows, pages=table.shape[1], window_pages=width, device=device)
        inputs.page_table.copy_(table)
        inputs.window.copy_(self.windows[:rows])
        inputs.position.fill_(position)
        inputs.input_ids.random_(self.network.config.vocab_size)

        def step() -> None:
            inputs.input_ids.copy_(likeliest(self.network.decode(inputs, self.pools)))
            inputs.position.add_(1)

        return step

    def prefill(self, tokens: int) -> Callable[[], None]:
        """Return what computes a prompt of the first row, and waits for it."""
        count, zero = torch.tensor([tokens]), torch.zeros(1, dtype=torch.int64)
        none, window = torch.zeros(1, dtype=torch.int32), self.windows[:1]
        batch = ForwardBatch(
            input_ids=torch.randint(self.network.config.vocab_size, (tokens,)),
            chunk_start=zero,
            chunk_len=count,
            page_table=self.table[:1],
            window=window,
            ring=none,
            window_from=zero,
            write_from=zero,
            save_row=zero,
            save_position=count,
            save_ring=none,
            save_window=window,
            logit_tokens=count - 1,
        )

        def run() -> None:
            self.network.prefill(batch, self.pools)
            wait(self.network.device)

        return run


def _fill(pools: PagePools) -> None:
    """Fill pages with random numbers."""
    if isinstance(pools, SparsePools):
        _pack(pools)
        return
    for tensor in pools.tensors().values():
        for layer in tensor:
            layer.normal_()


def _pack(pools: SparsePools) -> None:
    """Fill pages with packed random numbers, some records at a time."""
    layers, pages, tokens = pools.records.shape[:3]
    page, device = pools.page, pools.records.device
    for slots in torch.arange(pages * tokens, device=device).split(SOME):
        for layer in range(layers):
            pools.store_records(layer, slots, torch.randn(len(slots), page.channels, device=device))
            keys = torch.randn(len(slots), page.key_channels, device=device)
            pools.store_keys(layer, slots, keys)


def _decode(options: argparse.Namespace, network: PageNetwork) -> Iterator[str]:
    bandwidth, context = copy_bandwidth(), options.context
    yield f"# copy {bandwidth / 1e12:.2f} TB/s, read and written"
    made = Rows(network, max(options.batch), context + options.replays + OTHER_STEPS)
    yield f"{'rows':>5}{'context':>9}{'ms':>10}{'tokens/s':>11}{'floor ms':>10}{'share':>7}"
    for rows in options.batch:
        step = made.decoder(rows, context)
        with _experts_routed() as routed:
            step()
        wait(network.device)
        replay = replayed(step, network.device)
        rest(network.device)
        replay()
        if options.profile:
            spans = profiled(replay, count=4, trace=None)
            yield "\n".join([*kernel_table(spans, steps=4), *gap_table(spans)])
            continue
        ms = statistics.median(times_ms(replay, options.replays, network.device))
        floor = step_bytes(network, rows, context, sum(routed)) / bandwidth * 1e3
        speed = rows / ms * 1e3
        yield f"{rows:>5}{context:>9}{ms:>10.3f}{speed:>11.0f}{floor:>10.3f}{floor / ms:>7.2f}"


def _prefill(options: argparse.Namespace, network: PageNetwork) -> Iterator[str]:
    factors = [torch.randn(LARGE, LARGE, device="cuda").bfloat16() for _ in range(2)]
    rate = 2 * LARGE**3 / (graph_us([lambda: factors[0] @ factors[1]]) * 1e-6)
    yield f"# a product of {LARGE} cubed: {rate / 1e12:.0f} TFLOP/s"
    made = Rows(network, 1, max(options.prompt))
    yield f"{'prompt':>8}{'ms':>10}{'tokens/s':>11}{'TFLOP/s':>9}{'share':>7}"
    for tokens in options.prompt:
        run = made.prefill(tokens)
        run()
        if options.profile:
            spans = profiled(run, count=1, trace=None)
            yield "\n".join([*kernel_table(spans, steps=1), *gap_table(spans)])
            continue
        ms = statistics.median(times_ms(run, 5, network.device))
        reached = prompt_flops(network.config, tokens) / ms * 1e3
        numbers = f"{ms:>10.2f}{tokens / ms * 1e3:>11.0f}{reached / 1e12:>9.0f}"
        yield f"{tokens:>8}{numbers}{reached / rate:>7.2f}"


@contextmanager
def _experts_routed() -> Iterator[Sequence[int]]:
    """Count the distinct experts of each routing call while this is open; not inside a graph."""
    counts: list[int] = []

    def counting(route: Route) -> Route:
        def counted(*args: Any, **options: Any) -> tuple[Tensor, Tensor]:
            experts, weights = route(*args, **options)
            counts.append(int(torch.unique(experts).numel()))
            return experts, weights

        return counted

    with ExitStack() as patched:
        for module, name in (
            (gqa_network, "route_softmax"),
            (gpt_oss_network, "route_softmax"),
            (mla_network, "route_groups"),
        ):
            patched.enter_context(patch.object(module, name, counting(getattr(module, name))))
        yield counts


if __name__ == "__main__":
    main()
