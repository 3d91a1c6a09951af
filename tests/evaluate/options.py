"""The command line of the evaluation."""

import argparse
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.evaluate.case import Thinking
from tests.evaluate.conditions import CONDITIONS
from tests.evaluate.variants import ABLATIONS, KV_FORMATS, SINKS
from tests.train.held_out import TASKS

_FULL_DISTANCES = (64, 128, 256, 512, 1024, 2048, 8192, 16384)
_QUICK_DISTANCES = (64, 512, 2048)
_FULL_N, _QUICK_N = 50, 20
# The task whose answers the server must hold to a schema.
_SCHEMA = "json_schema"


@dataclass(frozen=True, slots=True)
class Options:
    """What an evaluation was asked for; the fields are the flags.

    server_flags  go to `launch_server.py` as they are
    """

    model_path: Path | None
    device: str
    deterministic: bool
    url: str | None
    api_key: str | None
    tasks: tuple[str, ...]
    distances: tuple[int, ...]
    n: int
    seed: int
    thinking: Thinking
    max_tokens: int
    concurrency: int
    conditions: tuple[str, ...]
    kv: tuple[str, ...]
    without: tuple[str, ...]
    json: Path | None
    csv: Path | None
    card: Path | None
    plot: Path | None
    quiet: bool
    server_flags: tuple[str, ...]

    def flags(self) -> tuple[str, ...]:
        """Return what goes to every `launch_server.py`."""
        device = () if self.device == "auto" else ("--device", self.device)
        mode = ("--deterministic",) if self.deterministic else ()
        return (*device, *mode, *self.server_flags)

    def told(self) -> dict[str, Any]:
        """Return what shapes the figures, as JSON values."""
        names = ("tasks", "distances", "n", "seed", "thinking", "max_tokens", "conditions")
        shown = {name: getattr(self, name) for name in (*names, "kv", "without", "server_flags")}
        shown |= {"device": self.device, "deterministic": self.deterministic}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in shown.items()}


def parse(argv: Sequence[str]) -> Options:
    """Return the options that `argv` says. Exits with status 2 on misuse, as argparse does."""
    parser = _parser()
    ours, server_flags = _split(argv)
    values = vars(parser.parse_args(ours))
    quick = values.pop("quick")
    values["n"] = values["n"] or (_QUICK_N if quick else _FULL_N)
    values["distances"] = values["distances"] or (_QUICK_DISTANCES if quick else _FULL_DISTANCES)
    names = ("tasks", "distances", "conditions", "kv", "without")
    values |= {name: tuple(dict.fromkeys(values[name])) for name in names}
    options = Options(**values, server_flags=tuple(server_flags))
    fault = _fault(options)
    if fault:
        parser.error(fault)
    return options


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what comes before `--`, and after it."""
    words = list(argv)
    cut = words.index("--") if "--" in words else len(words)
    return words[:cut], words[cut + 1 :]


def _fault(options: Options) -> str | None:
    """Return why these options make no evaluation, None if they do."""
    if min(options.n, options.concurrency, options.max_tokens) < 1:
        return "--n, --concurrency and --max-tokens must be at least 1"
    if min(options.distances) < 1:
        return "--distances must be at least 1"
    if options.url is not None and (options.model_path or options.server_flags):
        return "a server at --url has its model and its flags already"
    if options.url is not None and (options.device != "auto" or options.deterministic):
        return "--device and --deterministic are for servers of their own: leave out --url"
    if options.url is not None and (options.kv or options.without):
        return "--kv and --without need servers of their own: leave out --url"
    if SINKS in options.without and options.model_path is None:
        return f"--without {SINKS} copies the checkpoint: give --model-path"
    if options.url is None and _SCHEMA in options.tasks and not _has_grammar():
        return f"{_SCHEMA} wants xgrammar: pip install -e '.[grammar]', or leave it out (--tasks)"
    return None


def _has_grammar() -> bool:
    return importlib.util.find_spec("xgrammar") is not None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.evaluate",
        description="How often the model is right, by task and by distance of the fact, asked "
        "through a real server.",
        epilog="What follows a lone -- goes to launch_server.py: -- --dtype float32",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    server = parser.add_argument_group("the server")
    server.add_argument(
        "--model-path", type=Path, help="checkpoint to serve; default: the server's own"
    )
    server.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto",
        help="what the server computes on; auto: as it finds",
    )  # fmt: skip
    server.add_argument(
        "--deterministic", action="store_true",
        help="the server gives the same bits in any state of the cache, on CUDA, too",
    )  # fmt: skip
    server.add_argument("--url", help="ask this running server instead of starting one")
    server.add_argument("--api-key", help="sent as a Bearer token")
    asked = parser.add_argument_group("what is asked")
    asked.add_argument("--quick", action="store_true", help="few cases: about two minutes")
    asked.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), metavar="TASK")
    asked.add_argument(
        "--distances", nargs="+", type=int, metavar="TOKENS",
        help="from a fact to its question, or of a text that is asked about; default: "
        f"{_told(_FULL_DISTANCES)}, quick {_told(_QUICK_DISTANCES)}",
    )  # fmt: skip
    asked.add_argument(
        "--n", type=int, help=f"dialogues in a cell; default: {_FULL_N}, quick {_QUICK_N}"
    )
    asked.add_argument("--seed", type=int, default=0, help="of the dialogues")
    asked.add_argument(
        "--thinking", choices=("off", "low", "high"), default="off", help="think before answering"
    )
    asked.add_argument("--max-tokens", type=int, default=256, help="longest answer")
    asked.add_argument(
        "--concurrency", type=int, default=4, help="requests at once where only cold ones are sent"
    )
    compared = parser.add_argument_group("what it is compared with, prompt by prompt")
    compared.add_argument(
        "--conditions", nargs="+", choices=CONDITIONS, default=["cold"], metavar="CONDITION",
        help=f"states of the cache: {_told(CONDITIONS)}",
    )  # fmt: skip
    compared.add_argument(
        "--kv", nargs="+", choices=KV_FORMATS, default=[], metavar="FORMAT",
        help=f"formats of the KV records: {_told(KV_FORMATS)}",
    )  # fmt: skip
    compared.add_argument(
        "--without", nargs="+", choices=ABLATIONS, default=[], metavar="PATH",
        help=f"paths taken away from the network: {_told(ABLATIONS)}",
    )  # fmt: skip
    _add_outputs(parser)
    return parser


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    out = parser.add_argument_group("what is kept")
    out.add_argument("--json", type=Path, help="everything, wrong answers in full")
    out.add_argument("--csv", type=Path, help="one row a cell")
    out.add_argument("--card", type=Path, help="figures for tests.train.export --measured")
    out.add_argument("--plot", type=Path, help="PNG (matplotlib)")
    out.add_argument("--quiet", action="store_true", help="no progress bar")


def _told(words: Sequence[object]) -> str:
    return ", ".join(map(str, words))
