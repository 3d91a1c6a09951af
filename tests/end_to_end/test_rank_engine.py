"""An engine whose network is shared by ranks answers, names a lost rank, and leaves nothing."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runtime.engine.engine import Engine
from runtime.errors import Unavailable
from tests.end_to_end.test_rank_faults import RANK_MAIN
from tests.end_to_end.tiny_model import tiny_model_flags
from tests.testing.processes import descendants, running, wait_gone

NEW = 6
GREEDY: dict[str, Any] = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True}
PROMPTS = [[5, 6, 7], [9, *range(20, 300)]]
LIMIT_S = 5.0


@contextmanager
def engine_of(folder: Path, ranks: int) -> Iterator[tuple[Engine, list[int]]]:
    """Yield an engine of the tiny network, and its processes; afterwards none of them is left."""
    tiny_model_flags(folder)
    before = set(descendants(os.getpid()))
    with Engine(
        model_path=str(folder),
        load_format="dummy",
        random_seed=0,
        dtype="float32",
        kv_cache_dtype="fp32",
        device="cpu",
        full_pages=16,
        tp_size=ranks,
    ) as engine:
        processes = [pid for pid in descendants(os.getpid()) if pid not in before]
        assert len(running(RANK_MAIN, processes)) == (ranks if ranks > 1 else 0)
        yield engine, processes
    wait_gone(processes, LIMIT_S)


@pytest.fixture
def sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where the sockets of this test's engines lie, and of no other."""
    folder = tmp_path / "sockets"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_two_ranks_answer_as_one_and_leave_nothing(tmp_path: Path, sockets: Path) -> None:
    answers: list[list[list[int]]] = []
    for ranks in (1, 2):
        with engine_of(tmp_path, ranks) as (engine, _):
            replies = engine.generate(input_ids=PROMPTS, sampling_params=GREEDY)
            memory = engine.server_info()["rank_memory"]
        answers.append([reply["output_ids"] for reply in replies])
        assert [part["rank"] for part in memory] == [*range(ranks)]

    assert answers[0] == answers[1]
    assert not list(sockets.iterdir())


@pytest.mark.slow
def test_a_lost_rank_ends_the_engine_with_its_name(tmp_path: Path, sockets: Path) -> None:
    with engine_of(tmp_path, 2) as (engine, processes):
        stream = engine.generate(
            input_ids=PROMPTS[0], sampling_params={**GREEDY, "max_new_tokens": 3000}, stream=True
        )
        next(stream)
        lost = time.monotonic()

        os.kill(running(RANK_MAIN, processes)[1], signal.SIGKILL)

        with pytest.raises(Unavailable):
            for _ in stream:
                pass
        assert time.monotonic() - lost < LIMIT_S
        with pytest.raises(Unavailable, match="rank 1 was killed by SIGKILL"):
            engine.generate(input_ids=PROMPTS[0], sampling_params=GREEDY)
    assert not list(sockets.iterdir())
