"""The server computes what the reference computed: tokens and log-probabilities, over HTTP.

The fast part holds the shorter prompts in small chunks and whole, each cold and then from the
cache; the slow part holds the longer prompts, too, at every chunk size that can go wrong in its own
way.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.oracle import (
    Case,
    compare_output_logprobs,
    compare_prompt_logprobs,
    compare_tokens,
    load_cases,
)
from tests.testing.server_process import ServerProcess, running_server

FLOAT32 = ("--dtype", "float32", "--kv-cache-dtype", "fp32", "--random-seed", "0")
FAST_PROMPT_TOKENS = 130
ALL = 1 << 20


def _flags(folder: Path, chunk: int) -> tuple[str, ...]:
    return ("--model-path", str(folder), *FLOAT32, "--chunked-prefill-size", str(chunk))


@pytest.fixture(
    scope="module", params=[pytest.param(7, marks=pytest.mark.slow), -1], ids="chunk {}".format
)
def server(request: pytest.FixtureRequest, oracle_v4_small: Path) -> Iterator[ServerProcess]:
    """A server that prefills in chunks of this many tokens."""
    with running_server(*_flags(oracle_v4_small, request.param)) as server:
        yield server


def _hold(server: ServerProcess, cases: list[Case]) -> None:
    """Ask for tokens and log-probabilities in one batch, then for tokens alone, again."""
    prompts = [case.ids for case in cases]
    wanted = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 5}
    cold = server.generate(prompts, wanted, max_new_tokens=32, ignore_eos=True)
    warm = server.generate(prompts, max_new_tokens=32, ignore_eos=True)

    for case, first, second in zip(cases, cold, warm, strict=True):
        what = f"prompt of {len(case.ids)}"
        agreeing = compare_tokens(case, first["output_ids"], what)
        compare_prompt_logprobs(case, first["meta_info"], what)
        compare_output_logprobs(case, first["meta_info"], agreeing, what)
        assert second["output_ids"] == first["output_ids"], f"{what}: reuse changed the tokens"
        assert second["meta_info"]["cached_tokens"] == len(case.ids) - 1


def test_short_prompts_give_the_reference_tokens_and_logprobs(
    server: ServerProcess, oracle_v4_small: Path
) -> None:
    _hold(server, load_cases(oracle_v4_small, max_len=FAST_PROMPT_TOKENS))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("chunk", "max_len"),
    [(1, 300), (3, 300), (7, 513), (64, ALL), (127, ALL), (128, ALL), (256, ALL), (-1, ALL)],
    ids=lambda value: str(value),
)
def test_all_prompts_give_the_reference_tokens_and_logprobs(
    oracle_v4_small: Path, chunk: int, max_len: int
) -> None:
    """Each prompt alone; tiny chunks, which take a step each, on the shorter prompts."""
    with running_server(*_flags(oracle_v4_small, chunk)) as server:
        for case in load_cases(oracle_v4_small, max_len=max_len):
            _hold(server, [case])


def test_text_is_tokenised_as_the_checkpoint_says(
    server: ServerProcess, oracle_v4_small: Path
) -> None:
    text, ids = "DeepSeek serves long prompts", [444, 431, 413, 415]

    by_text = server.generate(text, max_new_tokens=4, ignore_eos=True)
    by_ids = server.generate(ids, max_new_tokens=4, ignore_eos=True)

    assert by_text["meta_info"]["prompt_tokens"] == by_ids["meta_info"]["prompt_tokens"]
    assert by_text["output_ids"] == by_ids["output_ids"]
