"""One life of a server under a soak, from its start to its exit code."""

import asyncio
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.end_to_end.pools import assert_all_free, read_state, wait_idle
from tests.end_to_end.tiny_model import tiny_model_flags
from tests.soak.client import Client
from tests.soak.gate import Gate
from tests.soak.memory import Growth, MemoryWatch, process_name
from tests.soak.tally import Tally
from tests.testing.server_process import ServerProcess, running_server
from tests.testing.stand_in.tokenizer import write_tokenizer
from tests.testing.traffic import Traffic, shared_systems

# Every pool is too small for the twelve clients: something is evicted or retracted all the time.
POOLS = ("--full-pages", "14", "--swa-pages", "32", "--rings", "16", "--max-running-requests", "8")
MOST_PROMPT = 1400
CONTEXT_TOKENS = 16384
FLUSHES = 6
SAMPLES = 120
COUNTERS_S = 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, by how many, with which flags.

    repeats  a life goes on until so many greedy tokens were told again, however long that takes
    events   and until each of these counters of the scheduler has moved
    """

    seconds: float
    repeats: int
    clients: int
    seed: int
    check: bool
    policy: str
    events: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Life:
    """What happened.

    state   the scheduler's counters and gauges at the end, before the last flush
    growth  of each process
    flushed times that the idle cache was emptied
    """

    plan: Plan
    tally: Tally
    state: dict[str, float]
    growth: list[Growth]
    flushed: int

    def report(self) -> str:
        """Return what to print."""
        tally, state = self.tally, self.state
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(tally.calls.items()))
        counted = ", ".join(
            f"{name.removesuffix('_requests')} {state[name]:.0f}"
            for name in (
                *("requests", "finished_requests", "aborted_requests", "failed_requests"),
                *("refused_requests", "retracted_requests", "prompt_tokens", "cached_tokens"),
                *("replayed_tokens", "recomputed_tokens", "computed_prompt_tokens"),
                *("generation_tokens", "evicted_pages", "evicted_points"),
            )
        )
        return "\n  ".join(
            [
                f"{self.plan.seconds:.0f} s, {self.plan.clients} clients, {self.plan.policy}"
                f"{', checked after every step' if self.plan.check else ''}: sound",
                f"calls      {tally.calls.total()}: {kinds}",
                f"answers    {tally.choices} ({tally.tokens} tokens); refused {tally.refused}, "
                f"left {tally.left}; {tally.repeats} greedy tokens told again, all the same",
                f"scheduler  {counted}",
                f"hit rate   {state['cached_tokens'] / state['prompt_tokens']:.3f}, "
                f"flushed {self.flushed} times when idle",
                *(f"memory     {item}" for item in self.growth),
            ]
        )


def live(plan: Plan, folder: Path) -> Life:
    """Start a server, let the clients at it, stop it. Raises AssertionError."""
    flags = tiny_model_flags(folder)
    write_tokenizer(folder, max_tokens=CONTEXT_TOKENS)
    chunk = ("--chunked-prefill-size", "256", "--eviction-policy", plan.policy)
    with running_server(*flags, *POOLS, *chunk, check=plan.check) as server:
        tally, growth, flushed = asyncio.run(_let_in(plan, server))
        state = wait_idle(server)
        _assert_counted(server, tally, state)
        assert_all_free(server)
        assert server.client.get("/health_generate").status_code == 200
    grown = [item for item in growth if item.grown > item.bound]
    assert not grown, f"memory grows: {', '.join(map(str, grown))}"
    return Life(plan, tally, state, growth, flushed)


async def _let_in(plan: Plan, server: ServerProcess) -> tuple[Tally, list[Growth], int]:
    """Run all clients, the flusher and the memory watch until the time is over."""
    gate, tally = Gate(), Tally()
    end = time.monotonic() + plan.seconds
    awaited = set(plan.events)
    systems = shared_systems(plan.seed)
    context = int(server.get("/server_info")["context_tokens"])
    children = {f"{process_name(pid)} {pid}": pid for pid in server.children()}
    watch = MemoryWatch({f"API {server.pid}": server.pid, **children})

    def over() -> bool:
        return time.monotonic() >= end and tally.repeats >= plan.repeats and not awaited

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=plan.clients)
    async with (
        httpx.AsyncClient(
            base_url=server.url, timeout=120.0, limits=limits, trust_env=False
        ) as http,
        asyncio.TaskGroup() as tasks,
    ):
        for number in range(plan.clients):
            draw = random.Random(f"{plan.seed} {number} {plan.policy}")
            traffic = Traffic(draw, systems, most_tokens=MOST_PROMPT)
            client = Client(http, gate, tally, traffic=traffic, context=context)
            tasks.create_task(client.run(over))
        flusher = tasks.create_task(_flush_now_and_then(plan, server, gate, over))
        tasks.create_task(_watch_memory(plan, watch, over))
        tasks.create_task(_watch_state(plan, server, tally, over))
        tasks.create_task(_watch_counters(server, awaited))
    tally.history.memory = watch.series(tally.begun_s)
    return tally, watch.growth(), flusher.result()


async def _flush_now_and_then(
    plan: Plan, server: ServerProcess, gate: Gate, over: Callable[[], bool]
) -> int:
    """Shut everybody out at times, and see that an idle and flushed server holds nothing."""
    flushed = 0
    while True:
        await asyncio.sleep(plan.seconds / (FLUSHES + 1))
        if over() and flushed:
            return flushed
        async with gate.shut():
            await asyncio.to_thread(assert_all_free, server)
            flushed += 1


async def _watch_memory(plan: Plan, watch: MemoryWatch, over: Callable[[], bool]) -> None:
    while not over():
        watch.sample(time.monotonic())
        await asyncio.sleep(plan.seconds / SAMPLES)


async def _watch_state(
    plan: Plan, server: ServerProcess, tally: Tally, over: Callable[[], bool]
) -> None:
    while not over():
        state = await asyncio.to_thread(read_state, server)
        tally.history.state.append((time.monotonic() - tally.begun_s, state))
        await asyncio.sleep(plan.seconds / SAMPLES)


async def _watch_counters(server: ServerProcess, awaited: set[str]) -> None:
    """Strike out the counters that have moved until none is left."""
    while awaited:
        state = await asyncio.to_thread(read_state, server)
        awaited -= {name for name in awaited if state[name] > 0}
        await asyncio.sleep(COUNTERS_S)


def _assert_counted(server: ServerProcess, tally: Tally, state: dict[str, float]) -> None:
    """Fail unless every request ended in one way, and both sides count alike."""
    ended = state["finished_requests"] + state["aborted_requests"] + state["failed_requests"]
    assert state["requests"] == ended, state
    # Only what a client gave up is aborted: an answer that came to a stop string is not.
    assert state["aborted_requests"] <= tally.given_up, (state, tally.given_up)
    assert state["failed_requests"] == 0, state
    assert state["refused_requests"] == 0, "the API refuses first"
    assert state["finished_requests"] >= tally.choices, state
    metrics = server.client.get("/metrics").text
    for name, value in (
        ("sglang:num_requests_total", state["requests"]),
        ("umbra:finished_requests_total", state["finished_requests"]),
        ("sglang:num_aborted_requests_total", state["aborted_requests"]),
        ("sglang:num_retracted_requests_total", state["retracted_requests"]),
        ("umbra:evicted_pages_total", state["evicted_pages"]),
    ):
        assert _metric(metrics, name) == value, name
    refused = _labelled(metrics, "umbra:calls_refused_total")
    too_long = [value for labels, value in refused.items() if 'reason="PromptTooLong"' in labels]
    assert sum(too_long) == tally.calls["too long"], refused


def _metric(text: str, name: str) -> float:
    [value] = _labelled(text, name).values()
    return value


def _labelled(text: str, name: str) -> dict[str, float]:
    found = re.findall(rf"^{re.escape(name)}(\{{.*\}}) (\S+)$", text, re.MULTILINE)
    return {labels: float(value) for labels, value in found}
