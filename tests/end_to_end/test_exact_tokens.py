"""Each kind of reuse, through the server: it happens, and the tokens are those of a cold run.

Two servers per network: one with few pages and every check on, one that reuses nothing. Their
tokens must be equal, without any allowance: on the CPU reference close choices go the same way.
Only the comparison with a checkpoint's own reference knows margins. Each push has the network
that is quick; test_oracle holds a checkpoint against its reference there, too.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.oracle import checkpoint, compare_tokens, load_cases
from tests.end_to_end.pools import assert_all_free, read_state, wait_idle
from tests.testing.server_process import ServerProcess, running_server
from tests.testing.traffic import shared_systems

FLOAT32 = ("--dtype", "float32", "--kv-cache-dtype", "fp32")
MODELS = {"v4_small": FLOAT32, "v4_real": FLOAT32, "v4_smooth_fp8": ("--kv-cache-dtype", "fp8")}
# Four rows of three pages fill it; a fifth page of any takes one from somebody.
# The other policy would keep the point that saves most, however small the pools.
TINY = (
    *("--full-pages", "12", "--swa-pages", "24", "--rings", "12", "--max-running-requests", "4"),
    *("--eviction-policy", "lru"),
)
MOST_EXCUSED = 2
MOST_NEW = 20

LONG, OTHER, TAIL = shared_systems(7, (1100, 1100, 150))


@dataclass(frozen=True, slots=True)
class Pair:
    """The two servers, how far a replay goes back, and the checkpoint's folder, if it has one."""

    warm: ServerProcess
    cold: ServerProcess
    replay_tokens: int
    folder: Path | None
    _colds: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    def ask(self, prompt: list[int], new: int = 8, **extra: Any) -> "Told":
        """Ask the warm server greedily; hold the tokens against the cold one's."""
        before = read_state(self.warm)
        reply = self.warm.generate(prompt, extra, max_new_tokens=new, ignore_eos=True)
        after = read_state(self.warm)
        assert reply["output_ids"] == self._cold(prompt, new)
        moved = {name: after[name] - before[name] for name in after}
        return Told(reply["output_ids"], reply["meta_info"]["cached_tokens"], moved)

    def _cold(self, prompt: list[int], new: int) -> list[int]:
        """Return the cold server's tokens; many tests ask for the same ones."""
        known = self._colds.get(tuple(prompt), [])
        if len(known) < new:
            cold = self.cold.generate(prompt, max_new_tokens=max(new, MOST_NEW), ignore_eos=True)
            assert cold["meta_info"]["cached_tokens"] == 0
            known = self._colds[tuple(prompt)] = cold["output_ids"]
        return known[:new]


@dataclass(frozen=True, slots=True)
class Told:
    """An answer that a cold run gives, too; how much was cached; by how much counters moved."""

    tokens: list[int]
    cached: int
    moved: dict[str, float]


@pytest.fixture(
    scope="module",
    params=[
        "tiny",
        pytest.param("v4_small", marks=pytest.mark.slow),
        pytest.param("v4_real", marks=pytest.mark.slow),
        pytest.param("v4_smooth_fp8", marks=pytest.mark.slow),
    ],
)
def servers(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Both servers of one network."""
    few = (*TINY, "--chunked-prefill-size", "127")
    if request.param == "tiny":
        cold = request.getfixturevalue("cold_server")
        with running_server(*request.getfixturevalue("tiny_model"), *few) as warm:
            yield Pair(warm, cold, warm.get("/server_info")["replay_tokens"], None)
        return
    folder = checkpoint(request.getfixturevalue("oracle_dir"), request.param)
    flags = ("--model-path", str(folder), *MODELS[request.param], "--random-seed", "0")
    reuse_nothing = ("--full-pages", "64", "--disable-radix-cache")
    with (
        running_server(*flags, *few) as warm,
        running_server(*flags, *reuse_nothing, check=False) as cold,
    ):
        yield Pair(warm, cold, warm.get("/server_info")["replay_tokens"], folder)


@pytest.fixture
def pair(servers: Pair) -> Iterator[Pair]:
    """Both servers, the cache empty; nothing may be lost in the test."""
    assert_all_free(servers.warm)
    yield servers
    assert_all_free(servers.warm)


@pytest.mark.slow
def test_a_cold_run_meets_the_reference(pair: Pair) -> None:
    """Outside the margins of design and reference; how many tokens they excuse is bounded."""
    if pair.folder is None or "fp32" not in MODELS[pair.folder.name]:
        pytest.skip("no reference in float32: tests/layers holds what fp8 KV may differ by")
    cases = load_cases(pair.folder, max_len=300)[::2]
    excused = 0
    for case in cases:
        reply = pair.warm.generate(case.ids, max_new_tokens=len(case.greedy), ignore_eos=True)
        agreeing = compare_tokens(case, reply["output_ids"], f"prompt of {len(case.ids)}")
        excused += agreeing < len(case.greedy)
    assert len(cases) > 5
    assert excused <= MOST_EXCUSED, f"{excused} of {len(cases)} prompts left the reference"


def test_a_flushed_cache_is_cold(pair: Pair) -> None:
    first = pair.ask(LONG)
    assert_all_free(pair.warm)
    second = pair.ask(LONG)

    assert first.cached == second.cached == 0
    assert first.tokens == second.tokens


@pytest.mark.parametrize("shared", [768, 900], ids=lambda count: f"{count} tokens")
def test_a_branch_is_hit_by_whoever_comes_third(pair: Pair, shared: int) -> None:
    """A page hit: what others left at the end of a page, or inside of one."""
    pair.ask(LONG)
    pair.ask([*LONG[:shared], *TAIL])

    third = pair.ask([*LONG[:shared], *TAIL[::-1]])

    assert third.cached == shared
    assert third.moved["replayed_tokens"] == third.moved["recomputed_tokens"] == 0


@pytest.mark.parametrize("turn", [1, 127, 255, 256, 700])
def test_a_turn_continues_at_the_exact_last_token(pair: Pair, turn: int) -> None:
    first = pair.ask(LONG[:turn], 10)
    history = [*LONG[:turn], *first.tokens]

    second = pair.ask([*history, *TAIL])

    assert second.cached == len(history) - 1, "the last token was sampled, but never fed"
    assert second.moved["replayed_tokens"] == second.moved["recomputed_tokens"] == 0


def test_a_repeated_prompt_computes_one_token(pair: Pair) -> None:
    pair.ask(LONG)

    again = pair.ask(LONG, 20)

    assert again.cached == len(LONG) - 1
    assert again.moved["computed_prompt_tokens"] == 1


def test_a_branch_off_a_long_prompt_is_replayed(pair: Pair) -> None:
    pair.ask(LONG)

    branch = pair.ask([*LONG[:1000], *TAIL])

    assert branch.cached == 1000 - pair.replay_tokens
    assert branch.moved["replayed_tokens"] == pair.replay_tokens


def test_pages_whose_points_were_evicted_are_replayed(pair: Pair) -> None:
    pair.ask(LONG)
    before = read_state(pair.warm)
    for number in range(6):
        pair.warm.generate([number, *TAIL], max_new_tokens=2, ignore_eos=True)
    after = read_state(pair.warm)
    assert after["evicted_points"] > before["evicted_points"]
    assert after["evicted_pages"] == before["evicted_pages"]

    second = pair.ask([*LONG, *TAIL])

    assert second.moved["replayed_tokens"] == pair.replay_tokens
    assert second.cached == len(LONG) - pair.replay_tokens


def test_what_was_evicted_is_computed_again(pair: Pair) -> None:
    pair.ask(LONG)
    before = read_state(pair.warm)
    for number in range(3):
        pair.warm.generate([number, *OTHER], max_new_tokens=2, ignore_eos=True)
    assert read_state(pair.warm)["evicted_pages"] > before["evicted_pages"]

    second = pair.ask(LONG)

    assert second.cached < len(LONG) - 1


def test_choices_of_one_prompt_fork_from_it(pair: Pair) -> None:
    wanted: dict[str, Any] = {"n": 5, "temperature": 1.0, "sampling_seed": 11, "max_new_tokens": 12}

    before = read_state(pair.warm)
    forks = pair.warm.generate(LONG, ignore_eos=True, **wanted)
    after = read_state(pair.warm)

    colds = pair.cold.generate(LONG, ignore_eos=True, **wanted)
    assert [fork["output_ids"] for fork in forks] == [cold["output_ids"] for cold in colds]
    assert len({tuple(fork["output_ids"]) for fork in forks}) > 1
    cached = [fork["meta_info"]["cached_tokens"] for fork in forks]
    assert sorted(cached) == [0, *[len(LONG)] * 4], "the others are sampled from the same logits"
    computed = after["computed_prompt_tokens"] - before["computed_prompt_tokens"]
    assert computed == len(LONG) + 4, "each of them fed its own first token"


def test_continuations_of_one_history_fork_from_it(pair: Pair) -> None:
    first = pair.ask(LONG, 10)
    history = [*LONG, *first.tokens[:-1]]

    forks = [pair.ask([*history, *TAIL[start:]]) for start in (0, 30, 60)]

    assert [fork.cached for fork in forks] == [len(history)] * 3
    assert all(fork.moved["replayed_tokens"] == 0 for fork in forks)


def test_a_retracted_request_comes_back_to_its_tokens(pair: Pair) -> None:
    """Four rows fill the pages to the brim, and each wants one more."""
    prompts = [[number, *LONG[:761]] for number in (11, 12, 13, 14)]
    before = read_state(pair.warm)

    replies = pair.warm.generate(prompts, max_new_tokens=20, ignore_eos=True)

    after = wait_idle(pair.warm)
    assert after["retracted_requests"] > before["retracted_requests"]
    colds = pair.cold.generate(prompts, max_new_tokens=20, ignore_eos=True)
    assert [r["output_ids"] for r in replies] == [c["output_ids"] for c in colds]


def test_a_prefix_in_the_making_is_waited_for(pair: Pair) -> None:
    prompts = [[*LONG, number] for number in (21, 22, 23)]

    with ThreadPoolExecutor(3) as pool:
        told = list(pool.map(lambda p: pair.warm.generate(p, max_new_tokens=6), prompts))

    state = wait_idle(pair.warm)
    assert sorted(r["meta_info"]["cached_tokens"] for r in told) == [0, len(LONG), len(LONG)]
    assert state["running"] == 0
    colds = pair.cold.generate(prompts, max_new_tokens=6)
    assert [r["output_ids"] for r in told] == [c["output_ids"] for c in colds]


def test_a_namespace_shares_nothing_and_changes_nothing(pair: Pair) -> None:
    first = pair.ask(LONG, cache_salt="one")
    other = pair.ask(LONG, cache_salt="two")
    again = pair.ask(LONG, cache_salt="one")

    assert (first.cached, other.cached) == (0, 0)
    assert again.cached == len(LONG) - 1
    assert first.tokens == other.tokens == again.tokens
