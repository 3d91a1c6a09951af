"""Two processes that share a run: the run of one."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.train.ranks import Ranks
from tests.train.run_log import read_log
from tests.train.run_state import load_state
from tests.train.shards import ROOT
from tests.train.trainer import LOG, STATE

# Each process trains in a folder of its own, so that what all of them hold can be compared.
_RUN = """
import sys
from pathlib import Path

from layers.models.deepseek_v4.config import parse_config
from tests.testing.recall_rows import RecallRows, small_config
from tests.train.mode import Mode
from tests.train.phases import Phase
from tests.train.ranks import joined
from tests.train.run_state import save_state
from tests.train.trainer import STATE, RunSettings, Trainer

ranks = joined()
mode = Mode(select=True, train_indexer=True)
phases = [
    Phase("first", 128, 512, 128, 3, mode),
    Phase("votes", 128, 512, 256, 2, mode, whole_every=2),
]
folder = Path(sys.argv[1]) / str(ranks.rank)
trainer = Trainer(
    parse_config(small_config(hidden_size=32, index_topk=8)),
    phases,
    folder,
    source=RecallRows(seed=ranks.rank),
    settings=RunSettings(log_every=1, probe_every=2),
    ranks=ranks,
)
assert trainer.train()
save_state(folder / STATE, trainer.progress, trainer.parameters, {})
ranks.part_ways()
"""


def _start(folder: Path, count: int) -> "list[subprocess.Popen[bytes]]":
    """Train with `count` processes, each with rows of its own that only the first one's replace."""
    script = folder / "run.py"
    folder.mkdir()
    script.write_text(_RUN, encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        subprocess.Popen(
            [sys.executable, str(script), str(folder)],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
                **({**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} if count > 1 else {}),
            },
        )
        for rank in range(count)
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_train_as_one_does(tmp_path: Path) -> None:
    processes = [*_start(tmp_path / "alone", 1), *_start(tmp_path / "shared", 2)]
    try:
        assert [process.wait(500) for process in processes] == [0] * 3
    finally:
        for process in processes:
            process.kill()

    alone, shared = (read_log(tmp_path / name / "0" / LOG) for name in ("alone", "shared"))
    for one, two in zip(alone, shared, strict=True):
        assert one["tokens"] == two["tokens"]
        for name in ("loss", "accuracy", "index_kl", "grad_norm", "load_most"):
            # Sums in another order.
            assert float(two[name]) == pytest.approx(float(one[name]), rel=2e-3, nan_ok=True), name
    assert not (tmp_path / "shared" / "1" / LOG).exists()
    _, first, _ = load_state(tmp_path / "shared" / "0" / STATE)
    _, second, _ = load_state(tmp_path / "shared" / "1" / STATE)
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def test_rows_that_cannot_be_shared_evenly_are_refused() -> None:
    assert Ranks(1, 2).part(4) == slice(2, 4)
    with pytest.raises(ValueError, match="3 processes cannot share 4 rows"):
        Ranks(0, 3).part(4)
