"""A family with windows and no state through HTTP: tokens of transformers, reuse, forks, replay."""

import random
from pathlib import Path

import pytest

from tests.testing.gpt_oss_checkpoints import reference, write_packed
from tests.testing.gqa_checkpoints import VOCAB, assert_greedy
from tests.testing.server_process import running_server
from tests.testing.stand_in.tokenizer import write_tokenizer


@pytest.mark.parametrize("chunk", [96, pytest.param(512, marks=pytest.mark.slow)])
def test_turns_and_forks_have_the_tokens_of_transformers(chunk: int, tmp_path: Path) -> None:
    model = reference("wide")
    write_tokenizer(write_packed(model, tmp_path), max_tokens=512)
    flags = ("--full-pages", "8", "--swa-pages", "24", "--chunked-prefill-size", str(chunk))

    def words(count: int) -> list[int]:
        return [random.randrange(10, VOCAB) for _ in range(count)]

    history = words(401)
    turns, found = list[list[int]](), list[int]()
    with running_server("--model-path", str(tmp_path), *flags) as server:
        info = server.get("/server_info")
        for _ in range(3):
            reply = server.generate(history, max_new_tokens=5, ignore_eos=True)
            turns.append(history)
            found.append(reply["meta_info"]["cached_tokens"])
            assert_greedy(model, history, reply["output_ids"])
            history = [*history, *reply["output_ids"], *words(22)]
        # Behind 250 tokens there is no point: what windows held there is computed again.
        forked = [*turns[0][:250], *words(40)]
        fork = server.generate(forked, max_new_tokens=5, ignore_eos=True)
        # Others push them out, then the last turn is computed anew.
        together = server.generate([words(480) for _ in range(5)], max_new_tokens=2)
        again = server.generate(turns[2], max_new_tokens=5, ignore_eos=True)

    assert (info["model_type"], info["window"], info["ring_bytes"]) == ("gpt_oss", 70, 0)
    assert info["replay_tokens"] == 2 * 69
    assert found == [0, 405, 432]
    assert len(together) == 5
    assert fork["meta_info"]["cached_tokens"] == 250 - 2 * 69
    assert again["meta_info"]["cached_tokens"] == 0
    for ids, reply in ((forked, fork), (turns[2], again)):
        assert_greedy(model, ids, reply["output_ids"])
