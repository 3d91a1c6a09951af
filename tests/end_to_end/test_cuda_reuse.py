"""Each kind of reuse on a GPU with --deterministic: it happens, and a cold run has the same bits.

`python -m pytest tests/end_to_end/test_cuda_reuse.py` on a machine with a CUDA device.

Two servers: one with few pages and every check on, which computes prompts in small steps; one that
reuses nothing and computes them in large ones. Tokens and log-probabilities must be equal without
any allowance. Where there are two GPUs, both servers share the network over two, too.
What holds without --deterministic is tested by `tests.evaluate`, on a model that is sure of its
choices.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.pools import assert_all_free, read_state, wait_idle
from tests.testing.server_process import ServerProcess, running_server
from tests.testing.traffic import shared_systems

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

DEVICE = ("--device", "cuda", "--deterministic", "--mem-fraction-static", "0.3")
# Four rows of three pages fill it; a fifth page of any takes one from somebody.
# The other policy would keep the point that saves most, however small the pools.
TINY = (
    *("--full-pages", "12", "--swa-pages", "24", "--rings", "12", "--max-running-requests", "4"),
    *("--eviction-policy", "lru"),
)
SMALL_STEPS = ("--chunked-prefill-size", "127")
COLD = (
    *("--full-pages", "64", "--disable-radix-cache", "--chunked-prefill-size", "512"),
    *("--max-running-requests", "8"),
)
READY_S = 300.0
TOLD: dict[str, Any] = {"return_logprob": True, "top_logprobs_num": 3}

LONG, OTHER, TAIL = shared_systems(7, (1100, 1100, 150))


@dataclass(frozen=True, slots=True)
class Told:
    """An answer that a cold run gives, too; how much was cached; by how much counters moved."""

    tokens: list[int]
    cached: int
    moved: dict[str, float]


@dataclass(frozen=True, slots=True)
class Pair:
    """The two servers, and how far a replay goes back."""

    warm: ServerProcess
    cold: ServerProcess
    replay_tokens: int

    def ask(self, prompt: list[int], new: int = 8, **extra: Any) -> Told:
        """Ask the warm server greedily; hold what it says against the cold one."""
        before = read_state(self.warm)
        reply = self.warm.generate(prompt, {**TOLD, **extra}, max_new_tokens=new, ignore_eos=True)
        after = read_state(self.warm)
        self.check(prompt, reply, max_new_tokens=new)
        moved = {name: after[name] - before[name] for name in after}
        return Told(reply["output_ids"], reply["meta_info"]["cached_tokens"], moved)

    def check(self, prompt: list[int], reply: Any, **sampling: Any) -> None:
        """Fail unless the cold server, asked for this alone, says the same in the same bits."""
        cold = self.cold.generate(prompt, TOLD, ignore_eos=True, **sampling)
        assert cold["meta_info"]["cached_tokens"] == 0
        assert reply["output_ids"] == cold["output_ids"]
        for field in ("output_token_logprobs", "output_top_logprobs"):
            assert reply["meta_info"][field] == cold["meta_info"][field], field


@pytest.fixture(
    scope="module",
    params=["1", pytest.param("2", marks=pytest.mark.multi_gpu)],
    ids="{} GPU".format,
)
def servers(request: pytest.FixtureRequest, wide_stand_in: Path) -> Iterator[Pair]:
    """Both servers."""
    flags = (
        *("--model-path", str(wide_stand_in), *DEVICE, "--context-length", "4096"),
        *("--tp-size", request.param),
    )
    with (
        running_server(*flags, *TINY, *SMALL_STEPS, ready_s=READY_S) as warm,
        running_server(*flags, *COLD, check=False, ready_s=READY_S) as cold,
    ):
        yield Pair(warm, cold, warm.get("/server_info")["replay_tokens"])


@pytest.fixture
def pair(servers: Pair) -> Iterator[Pair]:
    """Both servers, the cache empty; nothing may be lost in the test."""
    assert_all_free(servers.warm)
    yield servers
    assert_all_free(servers.warm)


@pytest.mark.parametrize("length", [1, 2, 127, 128, 129, 513, 1100])
def test_steps_of_other_sizes_change_no_bit(pair: Pair, length: int) -> None:
    assert pair.ask(LONG[:length], 20).cached == 0


@pytest.mark.parametrize("shared", [768, 900], ids=lambda count: f"{count} tokens")
def test_a_branch_is_hit_by_whoever_comes_third(pair: Pair, shared: int) -> None:
    pair.ask(LONG)
    pair.ask([*LONG[:shared], *TAIL])

    third = pair.ask([*LONG[:shared], *TAIL[::-1]])

    assert third.cached == shared


@pytest.mark.parametrize("turn", [1, 127, 255, 256, 700])
def test_a_turn_continues_what_was_decoded(pair: Pair, turn: int) -> None:
    first = pair.ask(LONG[:turn], 140)
    history = [*LONG[:turn], *first.tokens]

    second = pair.ask([*history, *TAIL])

    assert second.cached == len(history), "the last token was fed with the step after it"


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
    wanted: dict[str, Any] = {"n": 4, "temperature": 1.0, "sampling_seed": 11, "max_new_tokens": 12}

    forks = pair.warm.generate(LONG, ignore_eos=True, **wanted)

    colds = pair.cold.generate(LONG, ignore_eos=True, **wanted)
    assert [fork["output_ids"] for fork in forks] == [cold["output_ids"] for cold in colds]
    assert len({tuple(fork["output_ids"]) for fork in forks}) > 1
    cached = sorted(fork["meta_info"]["cached_tokens"] for fork in forks)
    assert cached == [0, *[len(LONG)] * 3], "the others are sampled from the same logits"


def test_a_retracted_request_comes_back_to_its_bits(pair: Pair) -> None:
    """Four rows fill the pages to the brim, and each wants one more."""
    prompts = [[number, *LONG[:761]] for number in (11, 12, 13, 14)]
    before = read_state(pair.warm)

    replies = pair.warm.generate(prompts, TOLD, max_new_tokens=20, ignore_eos=True)

    after = wait_idle(pair.warm)
    assert after["retracted_requests"] > before["retracted_requests"]
    for prompt, reply in zip(prompts, replies, strict=True):
        pair.check(prompt, reply, max_new_tokens=20)


def test_company_changes_no_bit(pair: Pair) -> None:
    prompts = [[number, *OTHER[: 37 * number]] for number in range(1, 12)]

    def ask(prompt: list[int]) -> Any:
        return pair.warm.generate(prompt, TOLD, max_new_tokens=24, ignore_eos=True)

    with ThreadPoolExecutor(len(prompts)) as pool:
        replies = list(pool.map(ask, prompts))

    for prompt, reply in zip(prompts, replies, strict=True):
        pair.check(prompt, reply, max_new_tokens=24)


def test_a_namespace_shares_nothing_and_changes_nothing(pair: Pair) -> None:
    first = pair.ask(LONG, cache_salt="one")
    other = pair.ask(LONG, cache_salt="two")
    again = pair.ask(LONG, cache_salt="one")

    assert (first.cached, other.cached) == (0, 0)
    assert again.cached == len(LONG) - 1
