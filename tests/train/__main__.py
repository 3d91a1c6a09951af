"""Train the default model: `python -m tests.train --out RUN --minutes 9`, and again with --resume.

On several GPUs of one host, in less time: `torchrun --standalone --nproc-per-node 4 -m tests.train`
in the place of `python -m tests.train`.
A slice ends by itself, its state saved in RUN; the run's log is RUN/log.csv, and what it knew of
each task as it went on RUN/exams.csv. The data is made by worker processes while the device
computes.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch

from layers.models.deepseek_v4.config import parse_config
from tests.train.exam import Exams
from tests.train.export import TOKENIZER_FILES
from tests.train.exported import is_exported
from tests.train.geometry import default_config
from tests.train.phases import PHASES, first_step, scaled
from tests.train.ranks import Ranks, joined
from tests.train.regions import Regions
from tests.train.run_state import read_progress
from tests.train.source import Shards
from tests.train.tokenizer import write_tokenizer
from tests.train.trainer import STATE, RunSettings, Trainer

# What ending a slice takes: the steps under way, and writing.
_ENDING_S = 20.0
_TOKENIZER, _TOKENS = "tokenizer", "tokenizer.json"


def _options(ranks: Ranks) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.train", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--minutes", type=float, help="end the slice after so long")
    parser.add_argument("--resume", action="store_true", help="go on where the run ended")
    parser.add_argument(
        "--take-up", type=Path, help="go on with parameters alone: portable ones, or a checkpoint's"
    )
    parser.add_argument(
        "--at",
        choices=[phase.name for phase in PHASES],
        help="take them up where this phase begins",
    )
    parser.add_argument("--portable", type=Path, help="also write parameters in small files")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the steps to do")
    parser.add_argument("--rate", type=float, default=RunSettings().rate, help="learning rate")
    parser.add_argument("--seed", type=int, default=0)
    spare = (os.cpu_count() or 2) - 2 * ranks.count
    parser.add_argument("--workers", type=int, default=max(1, spare))
    parser.add_argument("--compile", action="store_true", help="fuse chains of operations")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    if options.resume and options.take_up is not None:
        parser.error("--resume and --take-up exclude each other")
    if options.at is not None and options.take_up is None:
        parser.error("--at says where to --take-up")
    if (options.out / STATE).is_dir() and not options.resume and options.take_up is None:
        parser.error(f"{options.out} holds a run: --resume goes on with it, another --out begins")
    if options.take_up is not None and ranks.leads:
        fault = _take_tokenizer(options)
        if fault:
            parser.error(fault)
    return options


def _take_tokenizer(options: argparse.Namespace) -> str | None:
    """Make sure that the run has its parameters' own tokenizer; return why it cannot, or None.

    A new one would give the words other ids than the parameters know.
    """
    tokenizer = options.out / _TOKENIZER
    if is_exported(options.take_up):
        if options.at is None:
            return "a checkpoint does not tell how far it is: say --at"
        tokenizer.mkdir(parents=True, exist_ok=True)
        for name in TOKENIZER_FILES:
            shutil.copyfile(options.take_up / name, tokenizer / name)
    elif not (tokenizer / _TOKENS).is_file():
        return f"--take-up needs the parameters' own tokenizer: copy it to {tokenizer}"
    return None


def _taken_up_at(options: argparse.Namespace) -> int:
    """Return the step at which portable parameters were taken up, now or before; 0: never."""
    if options.at is not None:
        return first_step(PHASES, options.at)
    if options.take_up is not None:
        return read_progress(options.take_up).step
    return (read_progress(options.out / STATE).lost_at or 0) if options.resume else 0


def _main() -> None:
    began = time.monotonic()
    ranks = joined()
    options = _options(ranks)
    torch.set_float32_matmul_precision("high")
    device = torch.device(options.device)
    raw = default_config()
    tokenizer = options.out / _TOKENIZER
    if ranks.leads and not (tokenizer / _TOKENS).is_file():
        tokenizer.mkdir(parents=True, exist_ok=True)
        write_tokenizer(tokenizer, max_tokens=raw["max_position_embeddings"], seed=options.seed)
    # The others go on when there is one.
    ranks.agreed(True)
    taken_up_at = _taken_up_at(options)
    with tempfile.TemporaryDirectory() as shards:
        trainer = Trainer(
            parse_config(raw),
            scaled(PHASES, options.scale, done=taken_up_at),
            options.out,
            source=Shards(
                Path(shards),
                tokenizer=tokenizer / _TOKENS,
                seed=options.seed,
                workers=options.workers,
            ),
            settings=RunSettings(rate=options.rate, seed=options.seed),
            device=device,
            dtype=torch.bfloat16 if device.type == "cuda" else torch.float32,
            regions=Regions(compiled=options.compile),
            exams=Exams(tokenizer / _TOKENS, seed=options.seed),
            ranks=ranks,
        )
        if options.resume:
            trainer.resume()
        elif options.take_up is not None:
            trainer.take_up(options.take_up, step=taken_up_at)
        until = float("inf")
        if options.minutes is not None:
            until = began + 60 * options.minutes - _ENDING_S
        finished = trainer.train(until)
    trainer.save(options.portable)
    if ranks.leads:
        word = "finished" if finished else "goes on with --resume"
        sys.stderr.write(f"step {trainer.progress.step}: the run {word}\n")
    ranks.part_ways()


if __name__ == "__main__":
    _main()
