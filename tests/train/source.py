"""Where a training's rows come from."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tests.train.phases import Phase
from tests.train.shards import ShardReader


class Rows(Protocol):
    """Rows of one phase, a step's worth at a time."""

    def next(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return token ids and loss weights of the next step, both [rows, length]."""
        ...


class Source(Protocol):
    """Rows for any phase; the same step has the same rows, whatever came before."""

    def open(self, phase: Phase, step: int) -> AbstractContextManager[Rows]:
        """Return the rows of `phase` from step number `step` of the run on."""
        ...


class Shards:
    """Rows that worker processes make: a shard is a step."""

    def __init__(self, folder: Path, *, tokenizer: Path, seed: int, workers: int) -> None:
        """Keep what readers are made with.

        folder     where shards lie until they are read
        tokenizer  path of tokenizer.json
        """
        self._folder, self._tokenizer = folder, tokenizer
        self._seed, self._workers = seed, workers

    def open(self, phase: Phase, step: int) -> ShardReader:
        """Start the workers of a phase."""
        return ShardReader(
            self._folder,
            tokenizer=self._tokenizer,
            tokens=phase.length,
            rows=phase.rows,
            seed=self._seed,
            workers=self._workers,
            first=step,
            whole_every=phase.whole_every,
        )
