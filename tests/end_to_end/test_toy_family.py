"""A family of one file is served by the real runtime: reuse, forks, eviction, as for any other."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testing.server_process import ServerProcess, running_server
from tests.testing.toy_family import write_folder

LAUNCHER = ("-m", "tests.testing.toy_family")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder."""
    return write_folder(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    """A server with room for a few conversations, which checks all invariants at each step."""
    flags = ("--model-path", str(folder), "--load-format", "dummy", "--full-pages", "12")
    with running_server(*flags, launcher=LAUNCHER) as running:
        yield running


def words(draw: random.Random, count: int) -> list[int]:
    """Return random token ids."""
    return [draw.randrange(10, 500) for _ in range(count)]


def test_its_facts_are_told(server: ServerProcess) -> None:
    info = server.get("/server_info")

    assert info["model_type"] == "toy"
    assert (info["num_hidden_layers"], info["record_format"]) == (2, "fp32")
    assert info["full_page_bytes"] > 0
    assert (info["swa_page_bytes"], info["ring_bytes"], info["replay_tokens"]) == (0, 0, 0)


def test_a_second_turn_computes_only_what_is_new(server: ServerProcess) -> None:
    draw = random.Random(1)
    prompt = words(draw, 600)

    first = server.generate(prompt, max_new_tokens=5)
    history = [*prompt, *first["output_ids"], *words(draw, 20)]
    second = server.generate(history, max_new_tokens=5)

    assert first["meta_info"]["cached_tokens"] == 0
    assert second["meta_info"]["cached_tokens"] == 604
    server.post("/flush_cache", {})
    cold = server.generate(history, max_new_tokens=5)
    assert cold["meta_info"]["cached_tokens"] == 0
    assert cold["output_ids"] == second["output_ids"]


@pytest.mark.parametrize("seed", [2, 3])
def test_forks_and_evicted_prefixes_give_the_tokens_of_a_cold_server(
    server: ServerProcess, seed: int
) -> None:
    draw = random.Random(seed)
    systems = [words(draw, length) for length in (300, 513, 90)]
    asked = [[*draw.choice(systems), *words(draw, draw.randrange(1, 200))] for _ in range(12)]

    warm = [server.generate(ids, max_new_tokens=4) for ids in asked]

    assert any(reply["meta_info"]["cached_tokens"] for reply in warm)
    for ids, reply in zip(asked, warm, strict=True):
        server.post("/flush_cache", {})
        cold = server.generate(ids, max_new_tokens=4)
        assert cold["output_ids"] == reply["output_ids"]
