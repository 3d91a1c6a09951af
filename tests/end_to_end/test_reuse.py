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
COLD_BATCH = 16
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


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a conversation and what came back."""

    prompt: list[int]
    answer: list[int]
    cached_tokens: int


def _play(server: ServerProcess, turns: list[Turn]) -> list[Asked]:
    """Hold one conversation; whatever it asks is answered in full."""
    history: list[int] = []
    asked: list[Asked] = []
    for turn in turns:
        prompt = history + turn.tokens
        prompts = [[*history, *turn.tokens[::-1], 9]] * turn.fork + [prompt] * (1 + turn.repeat)
        for ids in prompts:
            reply = server.generate(ids, max_new_tokens=turn.new_tokens, ignore_eos=True)
            meta = reply["meta_info"]
            assert meta["prompt_tokens"] == len(ids)
            assert meta["cached_tokens"] < len(ids), "one token is always left to compute"
            assert len(reply["output_ids"]) == turn.new_tokens
            asked.append(Asked(ids, reply["output_ids"], meta["cached_tokens"]))
        history = prompt + asked[-1].answer
    return asked


def _play_all(server: ServerProcess, script: list[list[Turn]]) -> list[Asked]:
    with ThreadPoolExecutor(len(script)) as pool:
        played = list(pool.map(lambda turns: _play(server, turns), script))
    return [asked for conversation in played for asked in conversation]


def _assert_cold_answers_are_the_same(cold: ServerProcess, played: list[Asked]) -> None:
    """Ask every prompt once more of a server that reuses nothing."""
    longest: dict[tuple[int, ...], int] = {}
    for asked in played:
        prompt = tuple(asked.prompt)
        longest[prompt] = max(longest.get(prompt, 0), len(asked.answer))
    answers: dict[tuple[int, ...], list[int]] = {}
    prompts = sorted(longest)
    for first in range(0, len(prompts), COLD_BATCH):
        batch = prompts[first : first + COLD_BATCH]
        steps = max(longest[prompt] for prompt in batch)
        replies = cold.generate([list(p) for p in batch], max_new_tokens=steps, ignore_eos=True)
        for prompt, reply in zip(batch, replies, strict=True):
            assert reply["meta_info"]["cached_tokens"] == 0
            answers[prompt] = reply["output_ids"]
    for asked in played:
        want = answers[tuple(asked.prompt)][: len(asked.answer)]
        assert asked.answer == want, (
            f"prompt of {len(asked.prompt)} tokens, {asked.cached_tokens} of them from the cache"
        )


@pytest.fixture(scope="module")
def model(tiny_model: tuple[str, ...]) -> tuple[str, ...]:
    """Flags of a model that is quick on the CPU."""
    return tiny_model


@pytest.fixture(scope="module")
def tiny(model: tuple[str, ...]) -> Iterator[ServerProcess]:
    """A server whose pools are too small for what it is asked."""
    with running_server(*model, *TINY, "--chunked-prefill-size", "96") as server:
        yield server


@pytest.fixture(scope="module")
def cold(cold_server: ServerProcess) -> ServerProcess:
    """A server with room, and without a cache."""
    return cold_server


def test_conversations_get_the_tokens_of_a_cold_run(
    tiny: ServerProcess, cold: ServerProcess
) -> None:
    played = _play_all(tiny, conversations(seed=1, turns=2))

    _assert_cold_answers_are_the_same(cold, played)
    assert any(asked.cached_tokens for asked in played)
    state = assert_conserved(tiny)
    assert state["evicted_pages"] > 0, "the pools were meant to be too small"
    assert state["evicted_points"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_long_conversations_get_the_tokens_of_a_cold_run(
    tiny: ServerProcess, cold: ServerProcess, seed: int
) -> None:
    played = _play_all(tiny, conversations(seed=seed, turns=6))

    _assert_cold_answers_are_the_same(cold, played)
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


@pytest.mark.parametrize("shared_tokens", [300, 1000])
def test_the_second_prompt_with_a_prefix_starts_near_where_it_parts(
    tiny: ServerProcess, shared_tokens: int
) -> None:
    tiny.post("/flush_cache", {})
    shared = [0, *(10 + k % 200 for k in range(shared_tokens - 1))]
    prompts = [[*shared, *range(first, first + 9)] for first in (30, 50, 70)]
    cached = [
        tiny.generate(prompt, max_new_tokens=2, ignore_eos=True)["meta_info"]["cached_tokens"]
        for prompt in prompts
    ]

    # The begin of the last page for the second; where the second parted for the third.
    page = shared_tokens // 256 * 256
    assert cached == [0, page, shared_tokens if shared_tokens - page >= 64 else page]


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
