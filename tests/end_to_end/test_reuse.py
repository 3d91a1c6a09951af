"""Reuse is invisible: on tiny pools conversations get the tokens that a cold server gives.

Conversations share system prompts, take turns that continue at the exact last token, repeat a
turn, and fork; sixteen of them run at once on pools so small that pages, windows and rings are
evicted, and requests retracted, all the time. Every cache invariant is checked after every step.
"""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.end_to_end.pools import assert_all_free, assert_conserved
from tests.testing.server_process import ServerProcess, running_server

CONVERSATIONS = 16
# One page is 256 tokens, one window up to 3 SWA pages: room for a few of the sixteen.
TINY = ("--full-pages", "14", "--swa-pages", "40", "--rings", "14")


@dataclass(frozen=True, slots=True)
class Turn:
    """What a client adds: tokens, and how many it wants back.

    repeat  the same prompt is sent twice, as a client that retries does
    fork    a second, different continuation of the same history is asked for as well
    """

    tokens: list[int]
    new_tokens: int
    repeat: bool
    fork: bool


def conversations(seed: int, *, turns: int) -> list[list[Turn]]:
    """Return deterministic conversations over three shared system prompts."""
    draw = random.Random(seed)
    systems = [_words(draw, length) for length in (290, 130, 513)]
    result: list[list[Turn]] = []
    for number in range(CONVERSATIONS):
        said = [_words(draw, draw.choice([1, 5, 40, 63, 64, 90])) for _ in range(turns)]
        said[0] = [0, *systems[number % 3], *said[0]]
        result.append(
            [
                Turn(tokens, draw.randint(1, 12), draw.random() < 0.3, draw.random() < 0.3)
                for tokens in said
            ]
        )
    return result


def _words(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(10, 250) for _ in range(count)]


def _play(server: ServerProcess, turns: list[Turn]) -> tuple[list[list[int]], int]:
    """Return every answer of one conversation, and how many tokens came from the cache."""
    history: list[int] = []
    answers: list[list[int]] = []
    cached = 0
    for turn in turns:
        prompt = history + turn.tokens
        prompts = [prompt] * (1 + turn.repeat) + [[*history, *turn.tokens[::-1], 9]] * turn.fork
        for ids in prompts:
            reply = server.generate(ids, max_new_tokens=turn.new_tokens, ignore_eos=True)
            meta = reply["meta_info"]
            assert meta["prompt_tokens"] == len(ids)
            assert meta["cached_tokens"] < len(ids), "one token is always left to compute"
            assert len(reply["output_ids"]) == turn.new_tokens
            answers.append(reply["output_ids"])
            cached += meta["cached_tokens"]
        history = prompt + answers[-1 - turn.fork]
    return answers, cached


def _play_all(server: ServerProcess, script: list[list[Turn]]) -> tuple[list[list[list[int]]], int]:
    with ThreadPoolExecutor(len(script)) as pool:
        played = list(pool.map(lambda turns: _play(server, turns), script))
    return [answers for answers, _ in played], sum(cached for _, cached in played)


@pytest.fixture(scope="module")
def tiny() -> Iterator[ServerProcess]:
    """A server whose pools are too small for what it is asked."""
    with running_server(*TINY, "--random-seed", "0", "--chunked-prefill-size", "96") as server:
        yield server


@pytest.fixture(scope="module")
def cold() -> Iterator[ServerProcess]:
    """A server with room, and without a cache."""
    flags = ("--full-pages", "128", "--disable-radix-cache", "--random-seed", "0")
    with running_server(*flags, check=False) as server:
        yield server


def test_conversations_get_the_tokens_of_a_cold_run(
    tiny: ServerProcess, cold: ServerProcess
) -> None:
    script = conversations(seed=1, turns=2)

    got, cached = _play_all(tiny, script)
    want, none_cached = _play_all(cold, script)

    for number, (have, goal) in enumerate(zip(got, want, strict=True)):
        assert have == goal, f"conversation {number} differs"
    assert cached > 0
    assert none_cached == 0
    state = assert_conserved(tiny)
    assert state["evicted_pages"] > 0, "the pools were meant to be too small"
    assert state["evicted_points"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_long_conversations_get_the_tokens_of_a_cold_run(
    tiny: ServerProcess, cold: ServerProcess, seed: int
) -> None:
    script = conversations(seed=seed, turns=6)

    got, cached = _play_all(tiny, script)
    want, _ = _play_all(cold, script)

    assert got == want
    assert cached > 0
    assert_conserved(tiny)


def test_a_turn_continues_at_the_last_token_not_at_the_last_page(tiny: ServerProcess) -> None:
    tiny.post("/flush_cache", {})
    prompt = [0, *range(10, 210)]
    first = tiny.generate(prompt, max_new_tokens=6, ignore_eos=True)
    history = prompt + first["output_ids"]

    second = tiny.generate([*history, 11, 12, 13], max_new_tokens=3, ignore_eos=True)

    # The last sampled token was never fed, so its KV does not exist yet.
    assert second["meta_info"]["cached_tokens"] == len(history) - 1


def test_a_repeated_prompt_computes_one_token(tiny: ServerProcess) -> None:
    tiny.post("/flush_cache", {})
    prompt = [0, *range(20, 150)]
    first = tiny.generate(prompt, max_new_tokens=5, ignore_eos=True)

    second = tiny.generate(prompt, max_new_tokens=5, ignore_eos=True)

    assert second["output_ids"] == first["output_ids"]
    assert second["meta_info"]["cached_tokens"] == len(prompt) - 1


def test_company_changes_no_logprob(tiny: ServerProcess) -> None:
    """The same bits alone and in a batch of strangers: exact equality of floats."""
    prompts = [[0, *range(start, start + 70)] for start in (15, 40, 90, 120)]
    wanted = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 3}

    together = tiny.generate(prompts, wanted, max_new_tokens=6, ignore_eos=True)
    for prompt, reply in zip(prompts, together, strict=True):
        tiny.post("/flush_cache", {})
        alone = tiny.generate(prompt, wanted, max_new_tokens=6, ignore_eos=True)
        for field in ("input_token_logprobs", "output_token_logprobs", "output_top_logprobs"):
            assert alone["meta_info"][field] == reply["meta_info"][field], field


def test_flushing_an_idle_server_frees_everything(tiny: ServerProcess) -> None:
    tiny.generate([0, 5, 6], max_new_tokens=1)

    assert_all_free(tiny)
