"""The process around the loop: what it builds from flags and a checkpoint, and its heartbeat."""

import dataclasses
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import runtime.executor.loading as loading
import runtime.scheduler.process as process
from layers.models.contract import Settings
from layers.models.deepseek_v4.model import V4Model
from layers.models.json_fields import ConfigFault
from layers.models.registry import read_model
from layers.parallel.ranks import OneRank, Ranks
from layers.weights.checkpoint import WeightError
from mem_cache.spec import CacheSpec, Paged, PoolSizes
from mem_cache.tree.policy import Lru, TurnPolicy
from runtime.config import ServerConfig
from runtime.device_sizes import DeviceSizes
from runtime.errors import ConfigError
from runtime.executor.cuda_model import CudaLoader
from runtime.executor.loaded_model import LoadedModel
from runtime.executor.loading import load_model
from runtime.ipc import SchedulerSocket, private_addresses
from runtime.messages import Generate, Grammar, Outputs, Ready, Sampling, State, pack_ids
from runtime.scheduler.loop import Scheduler
from runtime.scheduler.residency import Residency
from tests.testing.fused_rig import FakeMemory, QuantisedModel, a_device, short_stand_in
from tests.testing.joint_rig import CheckedJointExecutor
from tests.testing.scheduler_rig import MemorySocket, Rig

SMALL = ServerConfig(
    device="cpu",
    full_pages=6,
    swa_pages=40,
    rings=8,
    max_running_requests=3,
    chunked_prefill_size=64,
)
SMALL_POOLS = PoolSizes(full_pages=20, swa_pages=40, states=8)
PROMPT = [(7 * i + 3) % 500 + 2 for i in range(70)]


@pytest.fixture(scope="module")
def folder(stand_in: Path) -> Iterator[Path]:
    """The stand-in's checkpoint; threads are as they were, afterwards."""
    threads = torch.get_num_threads()
    yield stand_in
    torch.set_num_threads(threads)


def build(folder: Path, **change: object) -> tuple[Scheduler, Ready, MemorySocket]:
    socket = MemorySocket()
    config = dataclasses.replace(SMALL, **change)  # pyright: ignore[reportArgumentType]
    scheduler, ready = process.build_scheduler(config, folder, socket)
    return scheduler, ready, socket


def generate(
    scheduler: Scheduler, socket: MemorySocket, prompt: list[int], request_id: int
) -> tuple[list[int], int]:
    """Run a request to its end; return its tokens and how many came from the cache."""
    sampling = Sampling(max_new_tokens=4, seed=0, temperature=0.0, ignore_eos=True)
    socket.inbox.append(Generate(request_id, pack_ids(prompt), sampling, stream=False))
    for _ in range(50):
        scheduler.turn()
        for message in socket.outbox:
            if isinstance(message, Outputs) and message.items[0].request_id == request_id:
                return message.items[0].token_ids, message.items[0].cached_tokens
    raise AssertionError("no reply")


def test_greedy_tokens_are_the_same_with_and_without_a_cache(folder: Path) -> None:
    prompts = [PROMPT, PROMPT, [*PROMPT[:69], 9, 9]]
    results: list[list[tuple[list[int], int]]] = []
    for disabled in (False, True):
        scheduler, _, socket = build(folder, disable_radix_cache=disabled, check_every_step=True)
        results.append([generate(scheduler, socket, p, i) for i, p in enumerate(prompts)])

    warm, cold = results
    assert [tokens for tokens, _ in warm] == [tokens for tokens, _ in cold]
    assert [cached for _, cached in warm] == [0, 69, 69]
    assert [cached for _, cached in cold] == [0, 0, 0]
    assert len({tuple(tokens) for tokens, _ in warm}) > 1


def test_ranks_with_rows_of_their_own_answer_as_one_rank_does(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [PROMPT, PROMPT[:40], [*PROMPT[:69], 9, 9], PROMPT[5:]]
    solo, _, solo_socket = build(folder)
    expected = [generate(solo, solo_socket, p, i) for i, p in enumerate(prompts)]

    def start(config: ServerConfig, private_folder: str) -> LoadedModel:
        """Return whole networks where ranks would be."""
        model = read_model(folder, config.override_config)
        one, other = (load_model(config, folder, model, OneRank()) for _ in range(2))
        joint = CheckedJointExecutor([one.runner, other.runner])
        return dataclasses.replace(one, joint=joint)

    monkeypatch.setattr(process, "start_ranks", start)
    scheduler, ready, socket = build(
        folder, tp_size=2, dp_size=2, enable_dp_attention=True, check_every_step=True
    )
    told = [generate(scheduler, socket, p, i) for i, p in enumerate(prompts)]

    assert told == expected
    assert len(scheduler.replicas) == 2
    info = ready.info
    assert (info["dp_size"], info["enable_dp_attention"]) == (2, True)
    assert (info["tokens_per_replica"], info["max_total_num_tokens"]) == (6 * 256, 12 * 256)
    assert info["max_running_requests"] == 6


def test_ready_and_settings_say_what_was_resolved(folder: Path) -> None:
    scheduler, ready, _ = build(
        folder, schedule_policy="fcfs", max_queued_requests=5, decode_log_interval=7
    )

    assert (ready.context_tokens, ready.vocab_size, ready.eos_token_ids) == (6 * 256, 512, [1])
    info = ready.info
    assert (info["full_pages"], info["swa_pages"], info["rings"]) == (6, 40, 8)
    assert info["max_total_num_tokens"] == 6 * 256
    assert (info["page_size"], info["swa_page_size"], info["window"]) == (256, 64, 128)
    assert (info["dtype"], info["record_format"], info["device"]) == ("float32", "fp8", "cpu")
    assert (info["max_running_requests"], info["chunked_prefill_size"]) == (3, 64)
    assert info["cuda_graph"] is info["overlap"] is False
    assert scheduler.replicas[0].stats.gauges["cuda_graph"] == 0
    # Each pool has its dummy unit besides.
    weights = {"full_page_bytes": 7, "swa_page_bytes": 41, "ring_bytes": 9}
    counted = sum(int(info[name]) * n for name, n in weights.items())
    assert 0 <= int(info["pool_bytes"]) - counted <= counted // 50, "blocks of C128 are whole"
    settings = scheduler.settings
    assert settings.context_tokens == 6 * 256
    assert settings.eos_token_ids == (1,)
    assert (settings.schedule_policy, settings.max_queued_requests) == ("fcfs", 5)
    assert (settings.chunked_prefill_size, settings.decode_log_interval) == (64, 7)
    assert settings.max_logit_rows == (1 << 26) // 512
    assert scheduler.replicas[0].residency.table.page_table.shape == (3, 6)


@pytest.mark.usefixtures("dense_weights_once")
def test_a_network_on_a_gpu_is_told_as_such_and_its_steps_overlap(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loaded on the CPU, where the fused ops have references, it stands in for one on a GPU."""
    place = a_device(FakeMemory(1 << 34, seen=(1 << 30,)))

    def load(
        config: ServerConfig,
        folder: Path,
        model: V4Model,
        *,
        settings: Settings,
        given: DeviceSizes,
        device: torch.device,
        logit_rows: int,
        ranks: Ranks,
    ) -> LoadedModel:
        assert (given, device.type) == (DeviceSizes(3, 64, None), "cuda")
        there = QuantisedModel(model.config)
        loader = CudaLoader(config, there, settings=settings, given=given, place=place, ranks=ranks)
        return loader.load(folder, logit_rows=logit_rows)

    monkeypatch.setattr(loading, "choose_device", lambda *_: torch.device("cuda", 0))
    monkeypatch.setattr(loading, "load_on_cuda", load)
    change = {"context_length": 300, "cuda_graph_bs": (1, 2), "check_every_step": True}
    scheduler, ready, socket = build(short_stand_in(folder, tmp_path), device="cuda", **change)

    info = ready.info
    assert (info["dtype"], info["record_format"]) == ("bfloat16", "fp8")
    assert info["cuda_graph"] is info["overlap"] is scheduler.settings.overlap is True
    assert info["device_memory_bytes"] == 1 << 34
    assert ready.context_tokens == 300
    assert (scheduler.settings.step_context, scheduler.settings.step_samples) == (1 << 20, 3)
    first, again = (generate(scheduler, socket, PROMPT, k) for k in range(2))
    assert (first[1], again[1]) == (0, 69)
    assert len(first[0]) == len(again[0]) == 4
    assert scheduler.state().gauges["cuda_graph"] == 1


def test_a_shorter_context_is_kept_and_bounds_the_table(folder: Path) -> None:
    scheduler, ready, _ = build(folder, context_length=300)

    assert ready.context_tokens == 300
    assert scheduler.replicas[0].residency.table.page_table.shape == (3, 2)


@pytest.mark.parametrize(("length", "words"), [(32769, "exceeds"), (0, "least"), (-4, "least")])
def test_a_context_length_that_cannot_be_is_refused(folder: Path, length: int, words: str) -> None:
    with pytest.raises(ConfigError, match=f"--context-length {length} .*{words}"):
        build(folder, context_length=length)


def test_pools_too_small_for_one_request_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="too small"):
        build(folder, swa_pages=1)


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("config.json", b"{", ConfigFault),
        ("config.json", None, ConfigFault),
        ("model.safetensors", b"\x08\0\0\0", WeightError),
        ("model.safetensors", None, WeightError),
    ],
)
def test_a_broken_checkpoint_is_a_configuration_error(
    folder: Path, tmp_path: Path, name: str, content: bytes | None, fault: type[Exception]
) -> None:
    broken = tmp_path / "model"
    shutil.copytree(folder, broken)
    (broken / name).unlink()
    if content is not None:
        (broken / name).write_bytes(content)

    with pytest.raises(fault):
        build(broken)
    config = dataclasses.replace(SMALL, model_path=str(broken))
    with private_addresses() as addresses, pytest.raises(ConfigError, match=name):
        process.run_scheduler(config, addresses)


def test_no_model_path_is_a_configuration_error() -> None:
    with private_addresses() as addresses, pytest.raises(ConfigError, match="model path"):
        process.run_scheduler(SMALL, addresses)


def test_the_facts_say_where_cache_events_are_published(folder: Path) -> None:
    config = dataclasses.replace(
        SMALL, kv_events_config='{"publisher": "zmq", "endpoint": "tcp://127.0.0.1:0"}'
    )
    publisher = process.open_publisher(config)
    assert publisher is not None
    try:
        _, ready = process.build_scheduler(config, folder, MemorySocket(), publisher=publisher)
    finally:
        publisher.close()

    assert ready.info["kv_events_endpoint"] == publisher.endpoint
    assert not publisher.endpoint.endswith(":0")
    assert "kv_events_replay_endpoint" not in ready.info
    assert process.open_publisher(SMALL) is None


def test_an_event_port_in_use_is_told_before_weights_are_read(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        wanted = f'{{"publisher": "zmq", "endpoint": "{endpoint}"}}'
        config = dataclasses.replace(SMALL, model_path=str(tmp_path), kv_events_config=wanted)

        with private_addresses() as addresses, pytest.raises(ConfigError, match="cannot listen"):
            process.run_scheduler(config, addresses)


def test_a_folder_for_traces_is_made_or_the_start_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    wanted, wrong = (
        dataclasses.replace(SMALL, profile_dir=str(tmp_path / name)) for name in ("a/b", "file/a")
    )

    assert process.open_traces(SMALL) is None
    assert process.open_traces(wanted) is not None
    assert (tmp_path / "a" / "b").is_dir()
    with pytest.raises(ConfigError, match="--profile-dir"):
        process.open_traces(wrong)


class BeatSocket(MemorySocket, SchedulerSocket):
    """Tells when enough was sent."""

    def __init__(self, stop: threading.Event) -> None:
        MemorySocket.__init__(self)
        self._stop = stop

    def send(self, message: object) -> None:
        """Keep the message; three are enough."""
        MemorySocket.send(self, message)  # pyright: ignore[reportArgumentType]
        if len(self.outbox) == 3:
            self._stop.set()


def test_the_heartbeat_sends_the_state_until_told_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "HEARTBEAT_S", 0.001)
    rig = Rig(SMALL_POOLS)
    rig.send([1, 2, 3], 2)
    rig.run()
    stop = threading.Event()
    socket = BeatSocket(stop)
    beat = threading.Thread(
        target=process._beat, args=(rig.scheduler, socket, stop, os.getppid()), daemon=True
    )
    beat.start()
    beat.join(timeout=60)

    assert not beat.is_alive()
    assert len(socket.outbox) == 3
    for state in socket.outbox:
        assert isinstance(state, State)
        assert state.counters["finished_requests"] == 1
        assert state.step_age_s == 0.0


def test_the_process_ends_with_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(BaseException):
        pass

    def end(code: int) -> None:
        assert code == 1
        raise Ended

    monkeypatch.setattr(process, "HEARTBEAT_S", 0.001)
    monkeypatch.setattr(os, "_exit", end)
    stop = threading.Event()
    socket = BeatSocket(stop)

    with pytest.raises(Ended):
        process._beat(Rig(SMALL_POOLS).scheduler, socket, stop, os.getppid() + 1)

    assert socket.outbox == []


def test_grammars_are_made_for_the_checkpoint_that_is_served(folder: Path, tmp_path: Path) -> None:
    pool = process.build_grammars(
        ServerConfig(tokenizer_path=str(folder), max_grammars=2), tmp_path, read_model(folder).facts
    )
    output = pool.open(1, Grammar("regex", "[0-9]+", after=None))

    while output.allowed is None and output.failure is None:
        pool.poll(1.0)

    assert output.failure is None
    assert pool.end_ids == {1}
    pool.shut_down()


def test_tree_and_rows_are_as_the_flags_say() -> None:
    cache = CacheSpec("fp32", paged=(Paged("kv", 4096),))

    def built(rows: int = 9, live_states: int = 0, **flags: object) -> Residency:
        config = dataclasses.replace(SMALL, **flags)  # pyright: ignore[reportArgumentType]
        sizes = PoolSizes(20, 0, 2 * live_states, live_states)
        return process.build_residency(config, cache, sizes, 257, rows=rows)

    assert [built(*sizes).table.rows for sizes in ((3, 4), (9, 4), (9, 0))] == [3, 4, 9]
    assert built().table.page_table.shape[1] == 2
    assert [built(disable_radix_cache=off).reuse for off in (False, True)] == [True, False]
    assert built(resume_every_pages=3).policy.every_pages == 3
    quotas = [built(namespace_quota=share)._namespace_tokens for share in (1.0, 0.5, 0.01)]
    assert quotas == [None, 10 * 256, 256]
    policies = [type(built(eviction_policy=name).cache.policy) for name in ("lru", "turns")]
    assert policies == [Lru, TurnPolicy]
