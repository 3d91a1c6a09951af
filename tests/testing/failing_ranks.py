"""A server whose ranks fail where a test says: memory runs out in the rank that a token names.

python -m tests.testing.failing_ranks FLAGS ...
"""

import os
import sys

import torch

import runtime.executor.rank_child as rank_child
import runtime.executor.rank_process as rank_process
from runtime.config import ServerConfig
from runtime.executor.launched_step import LaunchedStep
from runtime.executor.model_runner import CpuModelRunner
from runtime.executor.rank_process import RankTask
from runtime.ipc import Addresses
from runtime.launch import serve
from runtime.scheduler.process import run_scheduler as run_real_scheduler
from runtime.wire.arrays import INT32, unpacked
from runtime.wire.rank_line import RankLineWriter
from runtime.wire.step import StepPlan

_MODULE = "tests.testing.failing_ranks"
# The memory of rank r ends in a step that holds token FIRST_TOKEN + r.
FIRST_TOKEN = 490
FAULTS = (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), MemoryError())


def run_scheduler(config: ServerConfig, addresses: Addresses) -> None:
    """Run the scheduler, with this module as the main one of its ranks."""
    rank_child.MAIN = _MODULE
    run_real_scheduler(config, addresses)


def _run_rank(words: int) -> None:
    """Run a rank whose steps fail that hold its token."""
    run, launch = rank_process.run, CpuModelRunner.launch

    def failing_run(task: RankTask, lines: RankLineWriter) -> None:
        def failing_launch(self: CpuModelRunner, plan: StepPlan) -> LaunchedStep:
            if FIRST_TOKEN + task.rank in unpacked(plan.rows.ids, INT32).tolist():
                raise FAULTS[task.rank]
            return launch(self, plan)

        CpuModelRunner.launch = failing_launch
        run(task, lines)

    rank_process.run = failing_run
    rank_process.main(words)


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].isdigit():
        _run_rank(int(sys.argv[1]))
    else:
        os._exit(serve(sys.argv[1:], scheduler_main=f"{_MODULE}:run_scheduler"))
