"""Measures the network without a server, with random weights, on the GPU at hand.

    decode    steps inside a CUDA graph against their floor: dense weights, the experts routed to
              and the KV read, once each, at the bandwidth of a large copy
    prefill   whole prompts by chunks
    profile   either of them under the profiler: kernels by time, gaps between them

A step of decode is the network, the likeliest token of each row and the next position; it is timed
on a device that has rested from what came before. Lines that begin with # say what the set-up took,
compiling included. Where several contexts are measured, a second table says what each adds over the
shortest, beside the time of the KV that it reads besides:

    python -m tests.bench.network decode --batch 1 --context 4096 900000 --experts fp4
    python -m tests.bench.network decode --batch 1 64 --deterministic

With --tp several GPUs share the network, and what their exchanges take is measured by a step that
copies instead:

    python -m tests.bench.network decode --tp 2 --model tests/bench/network/v4_flash --experts fp4

With --own-rows each of them computes attention of its own rows, and --batch is the rows of one.

With --deterministic a token has the same bits in any company; the same command without it says
what that costs.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from layers.experts.contract import ExpertForm
from layers.models.deepseek_v4.config import load_config
from layers.models.deepseek_v4.expert_form import expert_form
from layers.models.deepseek_v4.model import QuantisedV4
from layers.parallel.shares import Shares
from layers.steps.pieces import PIECE_SIZES
from layers.weights.loading import fill_dummy
from runtime.executor.decode_graphs import CudaCapture
from tests.bench.kernels.timing import copy_bandwidth
from tests.bench.network.clock import stage
from tests.bench.network.decode import Context, measure_decode
from tests.bench.network.kernels_run import gap_table, kernel_table, profiled
from tests.bench.network.prefill import measure_prefill, prompt_run
from tests.bench.network.ranks import Copies, Place, RanksOrCopies, start_all
from tests.bench.network.report import (
    Figures,
    OtherColumns,
    add_rows,
    added_table,
    check_columns,
    heading,
    line,
)
from tests.bench.serving.machine import commit

CUT = Path(__file__).parent / "v4_flash_8_layers"
SEED = 7


def main() -> None:
    """Measure what is asked for."""
    options, place = parse(sys.argv[1:]), Place.mine()
    if torch.cuda.device_count() < options.tp and not options.alone:
        sys.exit(f"{options.tp} CUDA devices are needed, and there are {torch.cuda.device_count()}")
    if options.tp > 1 and place is None and not options.alone:
        sys.exit(start_all(options.tp, sys.argv[1:]))
    if not options.profile and options.csv is not None:
        try:
            check_columns(options.csv)
        except OtherColumns as fault:
            sys.exit(f"error: {fault}")
    device = torch.device("cuda", 0 if place is None else place.shares.rank)
    attention = "data" if options.own_rows else "tensor"
    ranks = None if place is None else place.join(device, attention)
    if options.alone:
        ranks = RanksOrCopies(Copies(Shares(0, options.tp, attention)))
    # Rows of their own are other rows, which go to other experts.
    torch.manual_seed(SEED + (0 if ranks is None or not options.own_rows else device.index))
    with torch.inference_mode():
        network = _network(options, device, ranks)
        if options.profile:
            _profile(options, network)
            return
        found: list[Figures] = []
        measure = _decode if options.phase == "decode" else _prefill
        for figures in measure(options, network, ranks):
            found.append(figures)
            if options.csv is not None and device.index == 0:
                gpu = torch.cuda.get_device_name()
                add_rows(options.csv, [figures], gpu=gpu, commit=commit())
            print(heading(), line(figures), sep="\n", flush=True)
    print(f"\n{heading()}", *map(line, found), "", *added_table(found), sep="\n")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options; `profile` says whether the phase is only looked at."""
    parser = argparse.ArgumentParser(
        "python -m tests.bench.network",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(required=True)
    _phases(actions, profile=False)
    profile = actions.add_parser("profile", help="kernels by time, and the gaps between them")
    _phases(profile.add_subparsers(required=True), profile=True)
    return parser.parse_args(arguments)


def _phases(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]", *, profile: bool
) -> None:
    decode = actions.add_parser("decode", help="steps of many rows, one token each")
    decode.add_argument("--batch", type=int, nargs="+", default=[64], help="rows of a step")
    decode.add_argument("--context", type=int, nargs="+", default=[8192], help="tokens before it")
    decode.add_argument("--replays", type=int, default=4 if profile else 40, help="steps to time")
    decode.add_argument(
        "--longest", type=int, default=0, help="tokens that page tables have columns for"
    )
    prefill = actions.add_parser("prefill", help="whole prompts by chunks")
    prefill.add_argument("--prompt", type=int, nargs="+", default=[8192], help="tokens of each")
    prefill.add_argument("--rows", type=int, nargs="+", default=[1], help="prompts at once")
    if not profile:
        prefill.add_argument("--repeats", type=int, default=3, help="runs, the median is taken")
        prefill.add_argument(
            "--no-graphs", dest="graphs", action="store_false", help="launch small steps op by op"
        )
    for name, phase in (("decode", decode), ("prefill", prefill)):
        phase.set_defaults(phase=name, profile=profile)
        several = name == "prefill"
        phase.add_argument(
            "--chunk", type=int, nargs="+" if several else None, default=[8192] if several else 8192
        )
        phase.add_argument(
            "--deterministic", action="store_true", help="the same bits in any company; slower"
        )
        phase.add_argument("--experts", choices=("both", "fp4", "fp8"), default="both")
        phase.add_argument("--tp", type=int, default=1, help="GPUs that share the network")
        phase.add_argument(
            "--own-rows",
            action="store_true",
            help="each of --tp has rows of its own, as many as are given; only experts are shared",
        )
        phase.add_argument(
            "--alone", action="store_true", help="one rank of --tp, which copies for the others"
        )
        phase.add_argument("--model", type=Path, default=CUT, help="folder with a config.json")
        if profile:
            phase.add_argument("--out", type=Path, help="chrome trace, .json or .json.gz")
        else:
            phase.add_argument("--csv", type=Path, help="file that rows are added to")


def _network(
    options: argparse.Namespace, device: torch.device, ranks: RanksOrCopies | None
) -> QuantisedV4:
    config = load_config(options.model)
    with stage("allocation of weights", device):
        form = expert_form(config, options.experts)
        network = QuantisedV4(
            config, device, experts=form, deterministic=options.deterministic, ranks=ranks
        )
    with stage("random weights", device):
        fill_dummy(network, SEED)
    print(f"# {torch.cuda.memory_allocated(device) / 1e9:.1f} GB of weights", flush=True)
    return network


def kept_form(options: argparse.Namespace) -> ExpertForm:
    """Return the form that a step multiplies: a deterministic network keeps fp4 of both."""
    return "fp4" if options.deterministic and options.experts == "both" else options.experts


def _context(options: argparse.Namespace, network: QuantisedV4, tokens: int) -> Context:
    return Context(
        network,
        tokens=tokens,
        rows=max(options.batch),
        replays=options.replays,
        chunk=options.chunk,
        longest=options.longest,
    )


def _decode(
    options: argparse.Namespace, network: QuantisedV4, ranks: RanksOrCopies | None
) -> Iterator[Figures]:
    bandwidth = copy_bandwidth()
    print(f"# copy {bandwidth / 1e12:.2f} TB/s, read and written")
    for tokens in options.context:
        torch.cuda.empty_cache()
        context = _context(options, network, tokens)
        for rows in options.batch:
            yield measure_decode(
                context, rows, form=kept_form(options), bandwidth=bandwidth, ranks=ranks
            )
        del context


def _prefill(
    options: argparse.Namespace, network: QuantisedV4, ranks: RanksOrCopies | None
) -> Iterator[Figures]:
    del ranks
    if options.graphs and not options.own_rows:
        with stage("capture of small steps", network.device):
            network.capture_prefill(PIECE_SIZES, CudaCapture())
    for chunk in options.chunk:
        for prompt in options.prompt:
            for rows in options.rows:
                torch.cuda.empty_cache()
                yield measure_prefill(
                    network,
                    prompt=prompt,
                    rows=rows,
                    chunk=chunk,
                    form=kept_form(options),
                    repeats=options.repeats,
                )


def _profile(options: argparse.Namespace, network: QuantisedV4) -> None:
    """Profile the first of each list of sizes."""
    device = network.device
    if options.phase == "decode":
        rows, steps = options.batch[0], options.replays
        context = _context(options, network, options.context[0])
        call = context.replay(context.decoder(rows))
    else:
        prompt, rows, steps = options.prompt[0], options.rows[0], 1
        call = prompt_run(network, prompt=prompt, rows=rows, chunk=options.chunk[0])
        with stage("first run", device):
            call()
    call()
    torch.cuda.synchronize(device)
    trace = options.out
    if trace is not None and device.index:
        trace = trace.with_name(f"rank{device.index}-{trace.name}")
    spans = profiled(call, count=steps, trace=trace)
    print(*kernel_table(spans, steps=steps), *gap_table(spans), sep="\n")


if __name__ == "__main__":
    main()
