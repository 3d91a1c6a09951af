"""From a checkpoint to a runner on a device: what is measured, what is left, what does not fit.

On a CUDA device where there is one, else on the CPU, whose memory is made up.
"""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from layers.models.deepseek_v4.config import load_config
from layers.models.deepseek_v4.model import QuantisedV4
from layers.models.deepseek_v4.pools import KvPools
from layers.parallel.ranks import Ranks
from layers.parallel.shares import AttentionShares
from mem_cache.spec import PoolSizes
from runtime.config import ServerConfig
from runtime.device_sizes import device_sizes
from runtime.errors import ConfigError
from runtime.executor.cuda_model import BOTH_FORMS_SHARE, CudaLoader, Device
from runtime.executor.cuda_runner import CudaModelRunner
from runtime.executor.device_choice import choose_settings
from runtime.executor.loaded_model import LoadedModel
from runtime.wire.step import Join
from tests.testing.fused_rig import DEVICE, FakeMemory, QuantisedModel, a_device
from tests.testing.plans import line_sampling
from tests.testing.thread_ranks import ThreadRanks, in_ranks

GIB = 1 << 30
pytestmark = pytest.mark.usefixtures("dense_weights_once")
SMALL = {"max_running_requests": 2, "chunked_prefill_size": 16, "context_length": 300}


@pytest.fixture(scope="module")
def folder(short_folder: Path) -> Path:
    """The stand-in's checkpoint."""
    return short_folder


def load(
    folder: Path,
    memory: FakeMemory | None = None,
    *,
    place: Device | None = None,
    ranks: Ranks | None = None,
    **flags: object,
) -> LoadedModel:
    config = ServerConfig(**{**SMALL, **flags})  # pyright: ignore[reportArgumentType]
    return CudaLoader(
        config,
        QuantisedModel(load_config(folder)),
        settings=choose_settings(config, torch.device("cuda")),
        given=device_sizes(config, "cuda"),
        place=place or a_device(memory),
        ranks=ranks,
    ).load(folder, logit_rows=8)


def test_pools_get_what_the_limit_leaves_after_all_else(folder: Path) -> None:
    # Before weights, with them; around each of three captures; after all of it.
    pieces = 1 << 21
    seen = (3 * GIB, 7 * GIB, *(0, GIB), *(0, GIB + (1 << 20)), *(0, pieces), 7 * GIB + pieces)
    memory = FakeMemory(20 * GIB, peak=2 * GIB, seen=seen)

    loaded = load(folder, memory, mem_fraction_static=0.9)

    graphs = GIB + (1 << 20) + 4 * 512 + pieces
    assert loaded.told.facts["weight_bytes"] == 4 * GIB
    assert loaded.told.facts["activation_bytes"] == 2 * GIB
    assert loaded.told.facts["graph_bytes"] == graphs
    assert memory.runs == 1
    left = 18 * GIB - 3 * GIB - 4 * GIB - 2 * GIB - graphs
    assert 0.99 * left < loaded.told.pool_bytes < 1.01 * left


@pytest.fixture(scope="module")
def wide(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration that two ranks can share, without weights."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["moe_intermediate_size"] = 256
    made = tmp_path_factory.mktemp("wide")
    (made / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return made


@pytest.mark.parametrize("attention", ["tensor", "data"])
def test_ranks_have_the_pools_of_the_one_that_has_least_left_and_one_compiles(
    wide: Path, attention: AttentionShares
) -> None:
    totals, done = (GIB // 4, GIB // 8), list[str]()

    def note(what: str) -> list[str]:
        done.append(what)
        return []

    def load_one(ranks: ThreadRanks) -> LoadedModel:
        rank = ranks.shares.rank
        place = dataclasses.replace(
            a_device(FakeMemory(totals[rank])),
            compile=lambda: note(f"{rank} compiles"),
            ahead=lambda rows, stop: note(f"{rank} has products compiled"),
        )
        return load(wide, place=place, ranks=ranks, load_format="dummy", disable_cuda_graph=True)

    both = in_ranks(2, load_one, attention=attention)

    assert both[0].told.sizes == both[1].told.sizes
    assert 0.8 * totals[1] < both[1].told.pool_bytes < 0.9 * totals[1]
    [[first], [second]] = [loaded.told.memory for loaded in both]
    assert (first.rank, second.rank) == (0, 1)
    assert (first.total_bytes, second.total_bytes) == totals
    assert first.pool_bytes == second.pool_bytes == both[0].told.pool_bytes
    assert set(done[:2]) == {"0 compiles", "0 has products compiled"}
    assert done[2:] == ["1 has products compiled"]


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    """A runner on pools of the size that flags give."""
    return load(folder, FakeMemory(GIB), kv_cache_bytes=1 << 24)


def test_flags_for_pools_are_taken_as_they_are(loaded: LoadedModel) -> None:
    assert loaded.told.pool_bytes == pytest.approx(1 << 24, rel=0.1)
    assert isinstance(loaded.runner, CudaModelRunner)
    assert (loaded.told.graphs, loaded.told.in_flight, loaded.told.context_tokens) == (
        True,
        True,
        300,
    )


def test_what_sampling_takes_on_the_device_is_there_before_the_pools_are(
    loaded: LoadedModel,
) -> None:
    assert isinstance(loaded.runner, CudaModelRunner)
    sampler = loaded.runner._lines.sampler
    counts = sampler._penalties._counts
    assert counts.shape[0] >= SMALL["max_running_requests"]
    # The lines of the measurement are free for others.
    with torch.inference_mode():
        for line in range(SMALL["max_running_requests"]):
            sampler.update((), [Join(line, line_sampling(presence_penalty=0.5))])
    assert sampler._penalties._counts is counts


def test_what_is_not_wanted_is_left_out(folder: Path) -> None:
    loaded = load(
        folder,
        FakeMemory(GIB),
        kv_cache_bytes=1 << 24,
        disable_cuda_graph=True,
        disable_overlap_schedule=True,
    )

    assert (loaded.told.graphs, loaded.told.in_flight) == (False, False)
    assert loaded.told.facts["graph_bytes"] == 0


def test_a_server_that_does_not_fit_says_so(folder: Path) -> None:
    with pytest.raises(ConfigError, match="nothing is left for the KV pools"):
        load(folder, FakeMemory(20 * GIB, seen=(18 * GIB,)), disable_cuda_graph=True)
    with pytest.raises(ConfigError, match=f"--kv-cache-bytes {30 * GIB} is more than"):
        load(folder, FakeMemory(20 * GIB), kv_cache_bytes=30 * GIB, disable_cuda_graph=True)
    with pytest.raises(ConfigError, match="too small for one request"):
        load(folder, FakeMemory(1 << 22), mem_fraction_static=0.01)


class FullMemory(FakeMemory):
    """Memory in which weights lie already, and that has no room for a step."""

    def peak_of(self, run: Callable[[], None]) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(
    ("experts", "told"),
    [("both", "give --experts fp4, which needs .* instead of"), ("fp4", "use a smaller model")],
)
def test_weights_that_leave_no_room_for_a_step_are_named(
    folder: Path, experts: str, told: str
) -> None:
    memory = FullMemory(20 * GIB, seen=(GIB, 19 * GIB))

    with pytest.raises(ConfigError, match=f"most of it is for weights .*: {told}") as raised:
        load(folder, memory, experts=experts)

    text = str(raised.value)
    assert "others 1.00, weights 18.00, activations more than the 1.00 left; device 20.00" in text
    assert "lower --chunked-prefill-size" in text


def test_steps_that_are_too_large_beside_few_weights_are_named(folder: Path) -> None:
    memory = FullMemory(20 * GIB, seen=(GIB, 2 * GIB))

    with pytest.raises(ConfigError, match=r"most of it is for activations .*: lower --chunk"):
        load(folder, memory, experts="fp4")


def refuse_large_pools(network: QuantisedV4, sizes: PoolSizes) -> KvPools:
    if sizes.full_pages > 1000:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return KvPools(network.spec, sizes, network.device)


def test_pools_that_do_not_fit_are_named_with_their_size(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QuantisedV4, "pools", refuse_large_pools)
    memory = FakeMemory(20 * GIB, seen=(GIB, 12 * GIB))

    with pytest.raises(ConfigError, match=r"most of it is for KV pools .*: lower --mem-fr") as told:
        load(folder, memory, full_pages=1 << 30, disable_cuda_graph=True)

    found = re.search(r"weights 11.00, KV pools (\d+).\d\d; device 20.00", str(told.value))
    assert found is not None
    assert int(found[1]) > 20


def test_graphs_without_room_beside_the_pools_say_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def capture(self: CudaModelRunner, *_: object) -> None:
        if self._pools.bytes > GIB // 4:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(CudaModelRunner, "capture", capture)
    memory = FakeMemory(GIB, seen=(0,))

    with pytest.raises(ConfigError, match="most of it is for KV pools") as told:
        load(folder, memory, kv_cache_bytes=GIB // 2 + GIB // 8)

    assert "CUDA graphs more than the 0." in str(told.value)
    assert "give fewer --cuda-graph-bs" in str(told.value)


def test_graphs_for_more_rows_than_may_run_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="--cuda-graph-bs has no size up to"):
        load(folder, FakeMemory(GIB), cuda_graph_bs=(4, 8))


def test_experts_are_kept_in_both_forms_where_there_is_room(folder: Path) -> None:
    def kept(total: int, *, deterministic: bool = False) -> object:
        made = load(
            folder,
            FakeMemory(total),
            kv_cache_bytes=1 << 22,
            disable_cuda_graph=True,
            deterministic=deterministic,
        )
        return made.told.facts["experts"]

    assert kept(GIB) == "both"
    assert kept(6 << 20) == "fp4"
    assert kept(GIB, deterministic=True) == "fp4"
    assert 0 < BOTH_FORMS_SHARE < 1


@pytest.mark.gpu
def test_on_the_gpu_a_server_takes_no_more_than_its_limit(folder: Path) -> None:
    loaded = load(folder, mem_fraction_static=0.3)

    free, total = torch.cuda.mem_get_info(DEVICE)
    assert loaded.told.facts["device"] == "cuda"
    assert loaded.told.facts["device_memory_bytes"] == total
    assert 0.25 < (total - free) / total <= 0.31
    assert int(loaded.told.facts["activation_bytes"]) > 0


@pytest.mark.gpu
def test_on_the_gpu_what_does_not_fit_is_told_before_serving(folder: Path) -> None:
    with pytest.raises(ConfigError, match="--kv-cache-bytes"):
        load(folder, kv_cache_bytes=1 << 42)
    with pytest.raises(ConfigError, match="most of it is for KV pools"):
        load(folder, full_pages=1 << 30)
