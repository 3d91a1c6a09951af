"""Reuse is invisible in any mixture: many clients at once, and the tokens of a cold run each.

Turns, repeats, edits, forks of several choices, three cache salts, greedy and sampled with a seed,
on pools so small that pages and points are evicted and rows retracted all the time, every cache
invariant checked after every step. Equality is exact: no margin excuses a token.
"""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.end_to_end.oracle import checkpoint
from tests.end_to_end.pools import assert_all_free, assert_conserved
from tests.testing.server_process import ServerProcess, running_server
from tests.testing.traffic import Ask, Traffic, shared_systems

CLIENTS = 8
COLD_BATCH = 8
TINY = ("--full-pages", "14", "--swa-pages", "28", "--rings", "12", "--max-running-requests", "6")
COLD = ("--full-pages", "128", "--disable-radix-cache")
FLOAT32 = ("--dtype", "float32", "--kv-cache-dtype", "fp32")
CHUNKS = (1, 7, 64, 127, 128, 256, 2048)


@dataclass(frozen=True, slots=True)
class Reply:
    """A request and its answers, one per choice."""

    ask: Ask
    answers: list[list[int]]
    cached: list[int]


def ask_server(server: ServerProcess, ask: Ask) -> Reply:
    """Send one request of the mixture."""
    reply = server.generate(
        ask.prompt,
        {"cache_salt": ask.salt},
        n=ask.choices,
        max_new_tokens=ask.new_tokens,
        temperature=ask.temperature,
        sampling_seed=ask.seed,
        ignore_eos=True,
    )
    replies = reply if isinstance(reply, list) else [reply]
    return Reply(
        ask,
        [item["output_ids"] for item in replies],
        [item["meta_info"]["cached_tokens"] for item in replies],
    )


def play(server: ServerProcess, *, seed: int, requests: int) -> list[Reply]:
    """Let eight clients send so many requests each, all at once; return what they got."""
    systems = shared_systems(seed)

    def client(number: int) -> list[Reply]:
        draw = random.Random(f"{seed} {number}")
        traffic = Traffic(draw, systems)
        replies: list[Reply] = []
        for _ in range(requests):
            reply = ask_server(server, traffic.next())
            traffic.answered(reply.ask, draw.choice(reply.answers))
            replies.append(reply)
        return replies

    with ThreadPoolExecutor(CLIENTS) as pool:
        return [reply for replies in pool.map(client, range(CLIENTS)) for reply in replies]


def assert_cold_tokens(cold: ServerProcess, played: list[Reply]) -> None:
    """Ask everything once more of a server that reuses nothing."""
    with ThreadPoolExecutor(COLD_BATCH) as pool:
        colds = list(pool.map(lambda reply: ask_server(cold, reply.ask), played))
    for reply, want in zip(played, colds, strict=True):
        what = f"{reply.ask.kind} of {len(reply.ask.prompt)} tokens, cached {reply.cached}"
        assert [len(answer) for answer in reply.answers] == [
            reply.ask.new_tokens
        ] * reply.ask.choices
        assert reply.answers == want.answers, what


def hold(
    model: tuple[str, ...], cold: ServerProcess, *flags: str, seed: int, requests: int
) -> None:
    """Play a mixture on tiny pools, and hold it against cold runs."""
    with running_server(*model, *TINY, *flags) as server:
        played = play(server, seed=seed, requests=requests)
        state = assert_conserved(server)
        assert_all_free(server)
    assert_cold_tokens(cold, played)
    for name in ("cached_tokens", "evicted_pages", "evicted_points"):
        assert state[name] > 0, f"{name}: {state}"
    assert state["requests"] == state["finished_requests"], state
    assert {reply.ask.kind for reply in played} == {"new", "turn", "again", "edit", "fork"}


def variant(chunk: int, policy: str, every: int) -> tuple[str, ...]:
    """Return flags of one way to prefill and to evict."""
    return (
        *("--chunked-prefill-size", str(chunk), "--eviction-policy", policy),
        *("--resume-every-pages", str(every)),
    )


@pytest.fixture(scope="module")
def model(tiny_model: tuple[str, ...]) -> tuple[str, ...]:
    """Flags of a model that is quick on the CPU."""
    return tiny_model


@pytest.fixture(scope="module")
def cold(cold_server: ServerProcess) -> ServerProcess:
    """A server with room, and without a cache."""
    return cold_server


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("chunk", "policy", "every"),
    [(127, "turns", 0), pytest.param(64, "lru", 1, marks=pytest.mark.slow)],
    ids=lambda value: str(value),
)
def test_a_mixture_gets_the_tokens_of_cold_runs(
    model: tuple[str, ...], cold: ServerProcess, chunk: int, policy: str, every: int
) -> None:
    hold(model, cold, *variant(chunk, policy, every), seed=1, requests=7)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize(("policy", "every"), [("turns", 0), ("turns", 1), ("lru", 0), ("lru", 1)])
def test_a_long_mixture_gets_the_tokens_of_cold_runs(
    model: tuple[str, ...], cold: ServerProcess, chunk: int, policy: str, every: int
) -> None:
    hold(model, cold, *variant(chunk, policy, every), seed=chunk, requests=20)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("chunk", "policy", "every"), [(7, "turns", 0), (128, "lru", 1), (2048, "turns", 1)]
)
@pytest.mark.parametrize(
    ("name", "flags"),
    [("v4_small", FLOAT32), ("v4_real", FLOAT32), ("v4_smooth_fp8", ("--kv-cache-dtype", "fp8"))],
    ids=["v4_small", "v4_real", "v4_smooth_fp8"],
)
def test_a_mixture_on_a_checkpoint_gets_the_tokens_of_cold_runs(
    oracle_dir: Path,
    name: str,
    flags: tuple[str, ...],
    chunk: int,
    policy: str,
    every: int,
) -> None:
    folder = checkpoint(oracle_dir, name)
    model = ("--model-path", str(folder), *flags, "--random-seed", "0")
    with running_server(*model, *COLD, check=False) as cold:
        hold(model, cold, *variant(chunk, policy, every), seed=chunk, requests=6)
