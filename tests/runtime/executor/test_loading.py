"""A checkpoint's network on the device that flags choose."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

import runtime.executor.loading as loading
from layers.models.registry import read_model
from layers.parallel.ranks import OneRank
from layers.parallel.shares import Shares
from runtime.config import ServerConfig
from runtime.executor.loading import load_model, logit_rows
from tests.testing.thread_ranks import in_ranks

SMALL = ServerConfig(device="cpu", full_pages=3, swa_pages=8, rings=2, max_running_requests=2)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Threads are as they were, afterwards."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_network_is_loaded_where_flags_say(stand_in: Path) -> None:
    loaded = load_model(SMALL, stand_in, read_model(stand_in), OneRank())

    assert loaded.told.facts["device"] == "cpu"
    assert (loaded.told.sizes.full_pages, loaded.told.context_tokens) == (3, 768)


def test_all_ranks_tell_the_same_but_for_their_memory(stand_in: Path) -> None:
    """What the scheduler plans with holds for each of them."""
    model = read_model(stand_in)

    told = in_ranks(2, lambda ranks: load_model(SMALL, stand_in, model, ranks).told)
    alone = load_model(SMALL, stand_in, model, OneRank()).told

    planned = [replace(one, memory=[]) for one in (*told, alone)]
    assert planned == planned[:1] * 3
    [first], [second], [whole] = (one.memory for one in (*told, alone))
    assert (first.rank, second.rank, whole.rank) == (0, 1, 0)
    assert first.weight_bytes == second.weight_bytes < whole.weight_bytes
    assert first.pool_bytes == second.pool_bytes == whole.pool_bytes


def test_a_device_that_is_given_is_taken(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []
    monkeypatch.setattr(loading, "load_on_cuda", lambda *_, **named: given.append(named))

    class Third(OneRank):
        shares = Shares(2, 4)

    device, ranks = torch.device("cuda", 5), Third()
    load_model(SMALL, stand_in, read_model(stand_in), ranks, device)

    (named,) = given
    assert isinstance(named, dict)
    assert (named["device"], named["ranks"]) == (device, ranks)


def test_a_step_computes_at_least_one_row_of_logits() -> None:
    assert logit_rows(1 << 16) == 1 << 10
    assert logit_rows(1 << 30) == 1


@pytest.mark.parametrize(
    ("hidden_size", "cores", "threads"), [(64, 8, 1), (4096, 6, 4), (1024, 1, 1)]
)
def test_small_networks_compute_with_one_thread(
    hidden_size: int, cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)

    assert loading._threads(hidden_size) == threads
