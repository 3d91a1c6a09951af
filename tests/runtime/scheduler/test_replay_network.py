"""A replay through the real network gives the bits of a cold run."""

from pathlib import Path

import numpy as np

from layers.models.deepseek_v4.config import load_config
from runtime.config import ServerConfig
from runtime.messages import Generate, Logprobs, Output, Outputs, Sampling, pack_ids
from runtime.scheduler.loop import Scheduler
from runtime.scheduler.process import build_scheduler
from tests.testing.scheduler_rig import MemorySocket

POOLS = ServerConfig(full_pages=16, swa_pages=48, rings=12, max_running_requests=2)


def run(scheduler: Scheduler, socket: MemorySocket, prompt: np.ndarray, new: int) -> Output:
    sampling = Sampling(max_new_tokens=new, seed=0, temperature=0.0, ignore_eos=True)
    wanted = Logprobs(start=len(prompt), top=3) if new else None
    request = Generate(len(socket.outbox), pack_ids(prompt), sampling, wanted, stream=False)
    socket.inbox.append(request)
    while True:
        scheduler.turn()
        for message in socket.outbox:
            if isinstance(message, Outputs) and message.items[0].request_id == request.request_id:
                return message.items[0]


def test_a_replay_gives_the_tokens_and_log_probabilities_of_a_cold_run(
    short_folder: Path,
) -> None:
    layers = load_config(short_folder).num_hidden_layers
    replay = 128 + (layers - 1) * 127
    prompt = np.random.default_rng(0).integers(8, 200, 1005)

    cold_socket = MemorySocket()
    cold, _ = build_scheduler(POOLS, short_folder, cold_socket)
    expected = run(cold, cold_socket, prompt, 6)
    socket = MemorySocket()
    scheduler, _ = build_scheduler(POOLS, short_folder, socket)
    run(scheduler, socket, prompt[:1000], 0)
    [replica] = scheduler.replicas
    replica.residency.cache.evict_swa(states=replica.residency.states.capacity)
    computed = replica.stats.counters["computed_prompt_tokens"]
    replayed = run(scheduler, socket, prompt, 6)

    # Each layer has a window of 128, which reaches back from position 1000.
    assert replayed.cached_tokens == 1000 - replay
    assert replica.stats.counters["computed_prompt_tokens"] - computed == replay + 5
    assert replayed.token_ids == expected.token_ids
    assert replayed.logprobs == expected.logprobs
