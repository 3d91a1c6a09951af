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
# Within this time a lost rank is told, and all of an engine is gone on a busy machine.
LIMIT_S = 5.0
GONE_S = 30.0


@contextmanager
def engine_of(folder: Path) -> Iterator[tuple[Engine, list[int]]]:
    """Yield an engine of two ranks, and its processes; afterwards none of them is left."""
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
        tp_size=2,
        dp_size="auto",
        max_running_requests=8,
    ) as engine:
        processes = [pid for pid in descendants(os.getpid()) if pid not in before]
        assert len(running(RANK_MAIN, processes)) == 2
        yield engine, processes
    wait_gone(processes, GONE_S)


@pytest.fixture
def sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where the sockets of this test's engines lie, and of no other."""
    folder = tmp_path / "sockets"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_two_ranks_answer_and_leave_nothing(tmp_path: Path, sockets: Path) -> None:
    with engine_of(tmp_path) as (engine, _):
        alone = engine.generate(input_ids=PROMPTS[1], sampling_params=GREEDY)
        both = engine.generate(input_ids=PROMPTS, sampling_params=GREEDY)
        info = engine.server_info()

    assert both[1]["output_ids"] == alone["output_ids"]
    assert [len(reply["output_ids"]) for reply in both] == [NEW] * 2
    assert both[1]["meta_info"]["cached_tokens"] > 0
    assert [part["rank"] for part in info["rank_memory"]] == [0, 1]
    assert info["dp_size"] == 1
    assert "fewer than 8" in info["dp_size_reason"]
    assert not list(sockets.iterdir())


@pytest.mark.slow
def test_a_lost_rank_ends_the_engine_with_its_name(tmp_path: Path, sockets: Path) -> None:
    with engine_of(tmp_path) as (engine, processes):
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
