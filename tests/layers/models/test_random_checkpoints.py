"""Every family against transformers, with sizes and options drawn at random.

    UMBRA_SEED=1 python -m pytest -m '' tests/layers/models/test_random_checkpoints.py

Each seed is another network, and UMBRA_SEED has 25 of them a family; `assert_greedy` excuses a
token only where the reference's best two are within 1e-4.
"""

import random
from pathlib import Path

import pytest
import torch

from layers.models.contract import Settings
from layers.models.registry import read_model
from layers.weights.loading import load_weights
from tests.conftest import SEED
from tests.testing.gqa_checkpoints import VOCAB, assert_greedy
from tests.testing.page_rig import PageRig
from tests.testing.random_checkpoints import FAMILIES, write_random
from tests.testing.window_rig import WindowRig

CPU = torch.device("cpu")
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 25))]


@pytest.mark.parametrize("prefix", FAMILIES)
@pytest.mark.parametrize("seed", SEEDS)
def test_tokens_are_those_of_transformers(prefix: str, seed: int, tmp_path: Path) -> None:
    seed += len(SEEDS) * SEED
    draw = random.Random(f"{prefix} {seed}")
    torch.manual_seed(seed)
    model = write_random(prefix, draw, tmp_path)
    network = read_model(tmp_path).build(CPU, Settings())
    load_weights(network, tmp_path, progress=False)
    rig = (WindowRig if network.cache.windows else PageRig)(network)

    for length, chunk in ((1, 1), (draw.randint(20, 60), 7), (draw.randint(300, 470), 64)):
        prompt = [draw.randrange(VOCAB) for _ in range(length)]
        tokens = rig.greedy(prompt, 5, chunk=chunk)
        assert_greedy(model, prompt, tokens)
