"""Random checkpoints of every family in the real scheduler: reuse gives what a cold run gives.

    UMBRA_SEED=1 python -m pytest -m slow tests/runtime/scheduler/test_family_reuse.py

A checkpoint has 24 prompts that go on from each other, in pools that hold a few of them. Every step
verifies the tree and its pools.
"""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from layers.models.contract import Network, Settings
from layers.models.registry import read_model
from layers.weights.loading import load_weights
from mem_cache.spec import PoolSizes
from tests.conftest import SEED
from tests.runtime.scheduler.test_families import Family, cold, conversations, rig_of
from tests.testing.gqa_checkpoints import VOCAB, write
from tests.testing.mla_checkpoints import reference
from tests.testing.random_checkpoints import FAMILIES, write_random

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")
PROMPTS, ROWS = 24, 3


def family_of(network: Network) -> Family:
    """Return a network with pools in which prompts push each other out."""
    spec = network.cache.tree
    page, window = spec.page_size, spec.window_pages
    return Family(
        lambda: network,
        *(VOCAB, page, page + page // 4, 6),
        ample=PoolSizes(8 * PROMPTS, 8 * PROMPTS * window, 0),
        short=PoolSizes(9, (2 * ROWS + 1) * window, 0),
    )


def loaded(folder: Path, settings: Settings) -> Network:
    """Return the network of a checkpoint."""
    network = read_model(folder).build(CPU, settings)
    load_weights(network, folder, progress=False)
    return network


def check_reuse(network: Network, draw: random.Random) -> None:
    """Fail unless what is reused, evicted and retracted changes no token."""
    family = family_of(network)
    if family.page < 256:
        # Answers that are longer than a page: rows are retracted.
        family = replace(family, new=family.page + 4)
    prompts = conversations(draw, family, PROMPTS)
    expected, rig = cold(family, prompts, family.new), rig_of(family, family.short)

    sent: list[int] = []
    for prompt in prompts:
        sent.append(rig.send(prompt, family.new, ignore_eos=True))
        if draw.random() < 0.3:
            rig.send(prompt, family.new, ignore_eos=True)
        if draw.random() < 0.6:
            rig.run()
    rig.run()

    assert [rig.tokens(request) for request in sent] == expected
    assert rig.residency.cache.evicted_pages
    assert rig.replica.stats.counters["cached_tokens"]
    rig.assert_conserved()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("prefix", FAMILIES)
def test_reuse_changes_no_token_of_any_family(prefix: str, seed: int, tmp_path: Path) -> None:
    seed += 100 * SEED
    draw = random.Random(f"{prefix} {seed}")
    torch.manual_seed(seed)
    write_random(prefix, draw, tmp_path)

    check_reuse(loaded(tmp_path, Settings()), draw)


@pytest.mark.parametrize("seed", range(3))
def test_reuse_of_packed_rows_changes_no_token(seed: int, tmp_path: Path) -> None:
    seed += 100 * SEED
    torch.manual_seed(seed)
    write(reference("v32"), tmp_path)

    check_reuse(loaded(tmp_path, Settings(kv_cache_dtype="fp8")), random.Random(seed))
