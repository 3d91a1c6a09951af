"""Worker processes that write the training data as shards, and the reader that takes them.

A shard is two files: token ids (uint16) and loss weights in tenths (uint8), both [rows, tokens].
The reader asks for shards by number on a worker's standard input and is told of each on its
standard output; a worker whose reader is gone reads the end of its input, and ends.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Self

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from tests.train.dialogue import Dialogue
from tests.train.mixture import training
from tests.train.phases import is_whole
from tests.train.render import WEIGHT_UNIT, Renderer, Row

ROOT = Path(__file__).resolve().parents[2]
_BATCH = 16


class ShardReader:
    """Reads the shards of one length in their order, while workers write the next ones.

    What it yields depends on tokenizer, seed, length, rows and first shard, not on the workers.
    """

    def __init__(
        self,
        folder: Path,
        *,
        tokenizer: Path,
        tokens: int,
        rows: int,
        seed: int = 0,
        workers: int = 1,
        first: int = 0,
        ahead: int = 2,
        whole_every: int = 0,
    ) -> None:
        """Start the workers.

        folder     where shards lie until they are read; made if need be
        tokenizer  path of tokenizer.json
        tokens     length of a row
        rows       rows a shard
        first      number of the first shard: what a resumed run goes on with
        ahead      most shards of each worker that wait to be read
        whole_every  one shard in so many is of votes alone, see `is_whole`; 0: none
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.number = first
        self._asked = first
        command = [sys.executable, "-m", "tests.train.shards", str(folder)]
        command += ["--tokenizer", str(tokenizer), "--tokens", str(tokens)]
        command += ["--rows", str(rows), "--seed", str(seed), "--whole-every", str(whole_every)]
        # Each worker is one process of many: threads of the tokenizer's would only get in the way.
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
        self._workers = [
            subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for _ in range(workers)
        ]
        for _ in range(ahead * workers):
            self._ask()

    def next(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return token ids and loss weights of the next shard, both [rows, tokens]; wait for it.

        Its files are deleted. Raises RuntimeError when its worker has died.
        """
        worker = self._worker(self.number)
        told = _pipe(worker.stdout).readline()
        if told.strip() != str(self.number):
            raise RuntimeError(f"the worker of shard {self.number} ended with {worker.poll()}")
        ids_path, weights_path = _paths(self._folder, self.number)
        ids = np.load(ids_path, allow_pickle=False).astype(np.int64)
        weights = np.load(weights_path, allow_pickle=False).astype(np.float32) / WEIGHT_UNIT
        ids_path.unlink()
        weights_path.unlink()
        self.number += 1
        self._ask()
        return ids, weights

    def close(self) -> None:
        """End the workers and delete what was not read."""
        for worker in self._workers:
            worker.kill()
            worker.wait()
            _pipe(worker.stdin).close()
            _pipe(worker.stdout).close()
        for number in range(self.number, self._asked):
            for path in _paths(self._folder, number):
                path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _worker(self, number: int) -> subprocess.Popen[str]:
        return self._workers[number % len(self._workers)]

    def _ask(self) -> None:
        stdin = _pipe(self._worker(self._asked).stdin)
        try:
            stdin.write(f"{self._asked}\n")
            stdin.flush()
        except BrokenPipeError:
            # The worker has died: `next` says so when its shard's turn comes.
            return
        finally:
            self._asked += 1


def make_shard(
    renderer: Renderer, *, tokens: int, rows: int, seed: int, number: int, whole: bool = False
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint8]]:
    """Return token ids and weights in tenths of one shard, both [rows, tokens].

    whole  of votes alone
    """
    dialogues = training(seed, tokens, number, whole=whole)
    return renderer.packed(list(islice(_rows(renderer, dialogues, tokens), rows)), tokens)


def _rows(renderer: Renderer, dialogues: Iterator[Dialogue], tokens: int) -> Iterator[Row]:
    while True:
        batch = list(islice(dialogues, _BATCH))
        yield from (row for row in renderer.rows(batch, tokens) if row is not None)


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def _paths(folder: Path, number: int) -> tuple[Path, Path]:
    return folder / f"shard_{number}_ids.npy", folder / f"shard_{number}_weights.npy"


def _work() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.train.shards", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    for name in ("tokens", "rows", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--whole-every", type=int, default=0)
    options = parser.parse_args()
    renderer = Renderer(Tokenizer.from_file(str(options.tokenizer)))
    for line in sys.stdin:
        number = int(line)
        arrays = make_shard(
            renderer,
            tokens=options.tokens,
            rows=options.rows,
            seed=options.seed,
            number=number,
            whole=is_whole(number, options.whole_every),
        )
        for path, array in zip(_paths(options.folder, number), arrays, strict=True):
            np.save(path, array, allow_pickle=False)
        try:
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()
        except BrokenPipeError:
            break


if __name__ == "__main__":
    _work()
