"""Families with latent records through HTTP: tokens of transformers, reuse, forks and eviction."""

import random
from pathlib import Path

import pytest
import torch

from layers.models.contract import Settings
from layers.models.registry import read_model
from layers.weights.loading import load_weights
from tests.testing.gqa_checkpoints import VOCAB, assert_greedy, write
from tests.testing.mla_checkpoints import reference
from tests.testing.page_rig import PageRig
from tests.testing.server_process import running_server
from tests.testing.stand_in.tokenizer import write_tokenizer


@pytest.mark.parametrize(
    ("name", "chunk"),
    [("v3", 256), ("v32", 64), pytest.param("v32", 1024, marks=pytest.mark.slow)],
)
def test_turns_and_forks_have_the_tokens_of_transformers(
    name: str, chunk: int, tmp_path: Path
) -> None:
    model = reference(name)
    write_tokenizer(write(model, tmp_path), max_tokens=4096)
    flags = ("--max-total-tokens", "2048", "--chunked-prefill-size", str(chunk))

    def words(count: int) -> list[int]:
        return [random.randrange(10, VOCAB) for _ in range(count)]

    history = words(601)
    turns, found = list[list[int]](), list[int]()
    with running_server("--model-path", str(tmp_path), *flags) as server:
        assert server.get("/server_info")["model_type"] == model.config.model_type
        for _ in range(3):
            reply = server.generate(history, max_new_tokens=5, ignore_eos=True)
            turns.append(history)
            found.append(reply["meta_info"]["cached_tokens"])
            assert_greedy(model, history, reply["output_ids"])
            history = [*history, *reply["output_ids"], *words(22)]
        # Others push them out, then each is computed anew, and a fork behind its first half.
        together = server.generate([words(900) for _ in range(3)], max_new_tokens=2)
        forked = [*turns[0][:300], *words(40)]
        replies = [
            server.generate(ids, max_new_tokens=5, ignore_eos=True) for ids in (turns[2], forked)
        ]

    assert found == [0, 605, 632]
    assert len(together) == 3
    assert [reply["meta_info"]["cached_tokens"] for reply in replies] == [0, 300]
    for ids, reply in zip((turns[2], forked), replies, strict=True):
        assert_greedy(model, ids, reply["output_ids"])


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [64, 333])
def test_packed_rows_are_served_with_the_tokens_of_the_network(chunk: int, tmp_path: Path) -> None:
    write_tokenizer(write(reference("v32"), tmp_path), max_tokens=4096)
    network = read_model(tmp_path).build(torch.device("cpu"), Settings(kv_cache_dtype="fp8"))
    load_weights(network, tmp_path, progress=False)
    rig, history = PageRig(network), [random.randrange(10, VOCAB) for _ in range(401)]
    flags = ("--kv-cache-dtype", "fp8", "--chunked-prefill-size", str(chunk))

    with running_server("--model-path", str(tmp_path), "--full-pages", "32", *flags) as server:
        for turn in range(3):
            reply = server.generate(history, max_new_tokens=8, ignore_eos=True)
            assert reply["output_ids"] == rig.greedy(history, 8)
            assert reply["meta_info"]["cached_tokens"] == (0 if turn == 0 else len(history) - 31)
            history += [*reply["output_ids"], *(random.randrange(10, VOCAB) for _ in range(30))]
