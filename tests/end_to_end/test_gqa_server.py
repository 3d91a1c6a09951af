"""Families without windows and state: tokens of transformers, reuse and eviction through HTTP."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from layers.models.contract import Settings
from layers.models.registry import read_model
from layers.weights.loading import load_weights
from tests.conftest import SEED
from tests.end_to_end.chat_turns import Conversation
from tests.runtime.chat.families import end_id, family_tokenizer
from tests.testing.chat_checkpoints import write_chat_tokenizer
from tests.testing.gqa_checkpoints import CHECKPOINTS, VOCAB, assert_greedy, reference, write
from tests.testing.page_rig import PageRig
from tests.testing.server_process import ServerProcess, running_server
from tests.testing.stand_in.tokenizer import write_tokenizer


@pytest.fixture(scope="module")
def model() -> Any:
    """What transformers makes of the checkpoint."""
    torch.manual_seed(SEED)
    return reference("qwen3", eos_token_id=end_id("qwen3"))


@pytest.fixture(scope="module")
def server(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with room for a few conversations, which checks all invariants at each step."""
    folder: Path = write(model, tmp_path_factory.mktemp("qwen3"))
    write_chat_tokenizer("qwen3", folder)
    flags = ("--max-total-tokens", "1280", "--chunked-prefill-size", "256")
    with running_server("--model-path", str(folder), *flags) as running:
        yield running


def words(draw: random.Random, count: int) -> list[int]:
    """Return random token ids."""
    return [draw.randrange(10, VOCAB) for _ in range(count)]


def cached(reply: dict[str, Any]) -> int:
    """Return how many prompt tokens came from the cache."""
    return reply["meta_info"]["cached_tokens"]


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_tokens_of_each_family_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = reference(name)
    folder = write(model, tmp_path)
    network = read_model(folder).build(torch.device("cpu"), Settings())
    load_weights(network, folder, progress=False)
    rig, draw = PageRig(network), random.Random(SEED)

    for length, chunk in ((1, 1), (300, 64), (531, 1024)):
        prompt = words(draw, length)
        assert_greedy(model, prompt, rig.greedy(prompt, 12, chunk=chunk))


def test_its_facts_are_told(server: ServerProcess) -> None:
    info = server.get("/server_info")

    assert (info["model_type"], info["dtype"], info["record_format"]) == (
        "qwen3",
        "float32",
        "fp32",
    )
    assert (info["swa_page_bytes"], info["ring_bytes"], info["replay_tokens"]) == (0, 0, 0)


def test_tokens_are_those_of_transformers_alone_and_together(
    server: ServerProcess, model: Any
) -> None:
    draw = random.Random(1)
    prompts = [words(draw, length) for length in (3, 64, 300, 700)]

    together = server.generate(prompts, max_new_tokens=8, ignore_eos=True)

    for prompt, reply in zip(prompts, together, strict=True):
        assert_greedy(model, prompt, reply["output_ids"])
        server.post("/flush_cache", {})
        alone = server.generate(prompt, max_new_tokens=8, ignore_eos=True)
        assert alone["output_ids"] == reply["output_ids"]


def test_the_next_turn_has_everything_cached_but_the_last_token(server: ServerProcess) -> None:
    draw = random.Random(2)
    server.post("/flush_cache", {})
    history = words(draw, 601)

    for expected in (0, 605, 632):
        reply = server.generate(history, max_new_tokens=5, ignore_eos=True)
        assert cached(reply) == expected
        history = [*history, *reply["output_ids"], *words(draw, 22)]
    again = server.generate(history, max_new_tokens=5, ignore_eos=True)
    server.post("/flush_cache", {})
    cold = server.generate(history, max_new_tokens=5, ignore_eos=True)
    assert (cached(cold), cached(again)) == (0, 659)
    assert cold["output_ids"] == again["output_ids"]


def test_the_next_turn_of_a_chat_finds_an_answer_whose_empty_reasoning_is_left_out(
    server: ServerProcess,
) -> None:
    server.post("/flush_cache", {})
    marks = family_tokenizer("qwen3").get_added_tokens_decoder()
    bias = {str(i): 10 if i == end_id("qwen3") else -100 for i in marks}
    answer = {"min_tokens": 70, "max_tokens": 500, "return_token_ids": True, "logit_bias": bias}
    chat = Conversation(server, answer, {"reasoning_effort": "none"}, ahead=True)

    turns = [chat.turn(text) for text in ("Who lives there?", "Since when?")]

    chat.check_cold()
    assert turns[0][0] == 0
    found, possible, length = turns[1]
    assert found == possible
    assert length - found < 60


def test_forks_and_evicted_prefixes_give_the_tokens_of_a_cold_server(
    server: ServerProcess,
) -> None:
    draw = random.Random(3)
    systems = [words(draw, length) for length in (300, 513, 90)]
    asked = [[*draw.choice(systems), *words(draw, draw.randrange(1, 200))] for _ in range(16)]

    warm = [server.generate(ids, max_new_tokens=4, ignore_eos=True) for ids in asked]

    assert any(map(cached, warm))
    assert any(not cached(reply) for reply in warm[8:])
    for ids, reply in zip(asked, warm, strict=True):
        server.post("/flush_cache", {})
        cold = server.generate(ids, max_new_tokens=4, ignore_eos=True)
        assert cold["output_ids"] == reply["output_ids"]


@pytest.mark.slow
def test_four_ranks_that_share_two_heads_of_keys_choose_the_tokens_of_transformers(
    tmp_path: Path,
) -> None:
    model, draw = reference("qwen3", num_attention_heads=8), random.Random(4)
    write_tokenizer(write(model, tmp_path), max_tokens=4096)
    ids = words(draw, 300)

    flags = ("--max-total-tokens", "3072", "--chunked-prefill-size", "64", "--tp-size", "4")
    with running_server("--model-path", str(tmp_path), "--device", "cpu", *flags) as ranks:
        first = ranks.generate(ids, max_new_tokens=8, ignore_eos=True)
        ids += first["output_ids"]
        second = ranks.generate(ids, max_new_tokens=8, ignore_eos=True)

    assert cached(second) == len(ids) - 1
    assert_greedy(model, ids, second["output_ids"], margin=1e-3)
