"""The reference network as a scheduler gets it."""

from pathlib import Path

import pytest
import torch

from layers.models.contract import Settings
from layers.models.registry import read_model
from layers.parallel.ranks import OneRank
from layers.parallel.shares import Shares
from layers.weights.checkpoint import WeightError
from mem_cache.spec import PoolSizes
from runtime.config import ServerConfig
from runtime.device_sizes import DeviceSizes
from runtime.errors import ConfigError
from runtime.executor.loaded_model import LoadedModel, fill_weights, load_on_cpu
from runtime.executor.memory_budget import MOST_UNITS
from runtime.executor.model_runner import CpuModelRunner

GIVEN = DeviceSizes(max_running_requests=2, chunked_prefill_size=64, kv_cache_bytes=1 << 24)


def load(folder: Path, config: ServerConfig) -> LoadedModel:
    settings = Settings(dtype="bfloat16")
    model = read_model(folder)
    return load_on_cpu(config, folder, model, settings=settings, given=GIVEN, ranks=OneRank())


def test_a_network_on_the_cpu_has_its_pools_and_no_step_in_flight(stand_in: Path) -> None:
    config = ServerConfig(full_pages=3, swa_pages=8, rings=2)

    loaded = load(stand_in, config)

    assert isinstance(loaded.runner, CpuModelRunner)
    assert loaded.told.sizes == PoolSizes(3, 8, 2)
    assert loaded.told.context_tokens == 3 * 256
    assert (loaded.told.graphs, loaded.told.in_flight) == (False, False)
    assert loaded.told.facts == {"device": "cpu", "dtype": "bfloat16", "record_format": "fp8"}
    assert loaded.told.cache.record_format == "fp8"
    assert loaded.told.pool_bytes == loaded.runner._pools.bytes


def test_pools_that_memory_does_not_hold_are_told_with_what_to_lower(stand_in: Path) -> None:
    config = ServerConfig(full_pages=MOST_UNITS, swa_pages=8, rings=2)

    with pytest.raises(ConfigError, match=r"pools take .* more .* --kv-cache-bytes"):
        load(stand_in, config)


def test_weights_that_memory_does_not_hold_are_no_traceback(stand_in: Path) -> None:
    model = read_model(stand_in, f"n_routed_experts={2**34}")

    with pytest.raises(ConfigError, match=r"^the weights take more memory than"):
        load_on_cpu(
            ServerConfig(),
            stand_in,
            model,
            settings=Settings(dtype="bfloat16"),
            given=GIVEN,
            ranks=OneRank(),
        )


def test_dummy_weights_need_no_files(stand_in: Path, tmp_path: Path) -> None:
    network = read_model(stand_in).build(torch.device("cpu"), Settings())
    weights = {
        name: weight for name, weight in network.named_weights() if isinstance(weight, torch.Tensor)
    }
    for weight in weights.values():
        weight.zero_()

    fill_weights(network, ServerConfig(load_format="dummy"), tmp_path, Shares())

    assert weights["embed.weight"].any()
    with pytest.raises(WeightError):
        fill_weights(network, ServerConfig(), tmp_path, Shares())
