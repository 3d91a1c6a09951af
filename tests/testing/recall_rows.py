"""A task that needs retrieval, made of random ids: pairs at the beginning, asked for to the end.

pairs of (key, value) between fillers | asking key value | filler | asking key value | ...
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.train.geometry import default_config
from tests.train.phases import Phase
from tests.train.source import Rows

_KEYS, _VALUES, _FILLERS = 32, 32, 28
_FIRST_KEY = 3
_FIRST_VALUE = _FIRST_KEY + _KEYS
_FIRST_FILLER = _FIRST_VALUE + _VALUES
_ASKING = _FIRST_FILLER + _FILLERS
VOCAB = _ASKING + 1
PAIRS = 8


def small_config(**changes: Any) -> dict[str, Any]:
    """Return the `config.json` of a network for these rows, as `changes` say."""
    return {
        **default_config(),
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "head_dim": 48,
        "qk_rope_head_dim": 16,
        "q_lora_rank": 32,
        "o_lora_rank": 32,
        "n_routed_experts": 4,
        "moe_intermediate_size": 32,
        "num_hash_layers": 1,
        "index_head_dim": 32,
        "index_topk": 16,
        "hc_sinkhorn_iters": 4,
        "compress_ratios": [0, 128, 4],
        **changes,
    }


class RecallRows:
    """A source of such rows: a step's depend on the seed and its number only."""

    def __init__(self, seed: int = 0) -> None:
        """Keep the seed."""
        self._seed = seed

    @contextmanager
    def open(self, phase: Phase, step: int) -> Iterator[Rows]:
        """Yield the rows of `phase` from `step` on."""
        yield _Steps(self._seed, phase, step)


class _Steps:
    def __init__(self, seed: int, phase: Phase, step: int) -> None:
        self._seed, self._phase, self._step = seed, phase, step

    def next(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        rng = np.random.default_rng((self._seed, self._step))
        self._step += 1
        shape = (self._phase.rows, self._phase.length)
        tokens = rng.integers(_FIRST_FILLER, _ASKING, shape)
        weights = np.full(shape, 0.1, np.float32)
        for row, shares in zip(tokens, weights, strict=True):
            _fill(row, shares, rng)
        return tokens, weights


def _fill(row: npt.NDArray[np.int64], shares: npt.NDArray[np.float32], rng: Any) -> None:
    keys = _FIRST_KEY + rng.permutation(_KEYS)[:PAIRS]
    values = _FIRST_VALUE + rng.integers(0, _VALUES, PAIRS)
    for number in range(PAIRS):
        at = 4 * number + rng.integers(0, 3)
        row[at], row[at + 1] = keys[number], values[number]
    for at in range(4 * PAIRS, len(row) - 2, 4):
        asked = rng.integers(0, PAIRS)
        row[at : at + 3] = _ASKING, keys[asked], values[asked]
        shares[at + 2] = 1.0
