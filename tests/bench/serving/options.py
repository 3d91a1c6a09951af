"""The command line: a workload, its numbers, and where to send it."""

import argparse
import dataclasses
import json
import math
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tests.bench.serving.workloads import RECIPES, Recipe

APIS = ("generate", "completions", "chat")


@dataclass(frozen=True, slots=True)
class Options:
    """What one run was asked for; the fields are the flags.

    recipe  the workload with its numbers
    """

    workload: str
    recipe: Recipe
    url: str
    api: str
    model: str | None
    api_key: str | None
    extra_body: dict[str, Any]
    plain_openai: bool
    request_rate: float
    max_concurrency: int | None
    seed: int
    vocab_size: int | None
    warmup_requests: int
    flush_cache: bool
    prefill_first: bool
    timeout: float
    output_file: Path | None
    output_details: bool
    csv: Path | None
    machine: str | None
    plot: Path | None
    quiet: bool

    def told(self) -> dict[str, Any]:
        """Return the flags as JSON values, without the key."""
        values = dataclasses.asdict(self)
        rate = None if math.isinf(self.request_rate) else self.request_rate
        values |= {"api_key": None, "request_rate": rate}
        return {k: str(v) if isinstance(v, Path) else v for k, v in values.items()}

    def numbers(self) -> str:
        """Return what tells runs of one workload apart: its numbers, when and how many run."""
        told = dataclasses.asdict(cast(Any, self.recipe))
        told |= {"request_rate": None if math.isinf(self.request_rate) else self.request_rate}
        told |= {"max_concurrency": self.max_concurrency, "prefill_first": self.prefill_first}
        return " ".join(f"{name}={value}" for name, value in told.items() if value)


def parse(argv: Sequence[str]) -> Options:
    """Return the options that `argv` says. Exits with status 2 on misuse, as argparse does."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.serving",
        description="Load a server; report latency, throughput and cache hits.",
    )
    workloads = parser.add_subparsers(dest="workload", required=True, metavar="WORKLOAD")
    for name, kind in RECIPES.items():
        summary = (kind.__doc__ or "").partition(".")[0]
        one = workloads.add_parser(
            name,
            help=summary,
            description=summary + ".",
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        hints = typing.get_type_hints(kind)
        numbers = one.add_argument_group("the workload")
        for item in dataclasses.fields(kind):
            flag = "--" + item.name.replace("_", "-")
            numbers.add_argument(
                flag, type=hints[item.name], default=item.default, help=item.metadata["help"]
            )
        _add_run_flags(one)
    values = vars(parser.parse_args(argv))
    kind = RECIPES[values["workload"]]
    names = [item.name for item in dataclasses.fields(kind)]
    recipe = cast(Recipe, kind(**{name: values.pop(name) for name in names}))
    try:
        _check(values)
    except ValueError as fault:
        parser.error(str(fault))
    return Options(recipe=recipe, **values)


def _check(values: dict[str, Any]) -> None:
    if values["request_rate"] <= 0:
        raise ValueError("--request-rate must be above 0")
    if values["max_concurrency"] is not None and values["max_concurrency"] < 1:
        raise ValueError("--max-concurrency must be at least 1")
    extra = json.loads(values["extra_body"])
    if not isinstance(extra, dict):
        raise ValueError("--extra-body must be a JSON object")
    values["extra_body"] = extra


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("the server")
    server.add_argument("--url", default="http://127.0.0.1:30000", help="where it listens")
    server.add_argument(
        "--api", choices=APIS, default="generate",
        help="generate: SGLang's /generate; completions, chat: OpenAI's",
    )  # fmt: skip
    server.add_argument("--model", help="name in the API; default: the first the server lists")
    server.add_argument("--api-key", help="sent as a Bearer token")
    server.add_argument("--extra-body", default="{}", help="JSON object merged into every body")
    server.add_argument(
        "--plain-openai", action="store_true", help="send only fields that OpenAI's own API knows"
    )
    server.add_argument("--timeout", type=float, default=600.0, help="longest silence, seconds")
    load = parser.add_argument_group("the load")
    load.add_argument(
        "--request-rate", type=float, default=math.inf,
        help="conversations, trees or single requests that begin a second; inf: all at once",
    )  # fmt: skip
    load.add_argument("--max-concurrency", type=int, help="how many of them are in flight at most")
    load.add_argument("--seed", type=int, default=0, help="of prompts and arrival times")
    load.add_argument("--vocab-size", type=int, help="token ids drawn from; default: the server's")
    load.add_argument(
        "--warmup-requests", type=int, default=1, help="sent and forgotten before the run"
    )
    load.add_argument("--flush-cache", action="store_true", help="empty the cache before the run")
    load.add_argument(
        "--prefill-first", action="store_true",
        help="send each first prompt once before the run, so that its answer is decoding alone",
    )  # fmt: skip
    out = parser.add_argument_group("what is kept")
    out.add_argument("--output-file", type=Path, help="JSON of the run, written over")
    out.add_argument("--output-details", action="store_true", help="with every request in it")
    out.add_argument("--csv", type=Path, help="CSV file to add a row to")
    out.add_argument("--machine", help="where the server runs; default: this machine")
    out.add_argument("--plot", type=Path, metavar="FOLDER", help="write PNGs there (matplotlib)")
    out.add_argument("--quiet", action="store_true", help="no progress bar")
