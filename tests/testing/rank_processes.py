"""Ranks as processes of their own, which find each other by a file.

A function of a test module, named "module:function", is called in each rank with its number, the
world and the device; what it returns is printed as JSON and comes back to the test.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_ROOT = Path(__file__).resolve().parent.parent.parent
_LIMIT_S = 300.0
_QUIET = {"NCCL_NVLS_ENABLE": "0", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def in_processes(world: int, function: str, folder: Path, *, backend: str = "gloo") -> list[Any]:
    """Return what `function` returns in each rank, in the order of ranks.

    folder   where ranks meet; a fresh one
    backend  "gloo" on the CPU, "nccl" on as many CUDA devices
    """
    command = [sys.executable, "-m", "tests.testing.rank_processes", function, backend]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(world), str(folder / "meeting")],
            cwd=_ROOT,
            env={**os.environ, **_QUIET},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    found: list[Any] = []
    try:
        for process in processes:
            printed, faults = process.communicate(timeout=_LIMIT_S)
            assert process.returncode == 0, faults
            found.append(json.loads(printed.splitlines()[-1]))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return found


def _main(function: str, backend: str, rank: int, world: int, meeting: str) -> None:
    on_cuda = backend == "nccl"
    device = torch.device("cuda", rank) if on_cuda else torch.device("cpu")
    if on_cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=world,
        device_id=device if on_cuda else None,
    )
    module, _, name = function.partition(":")
    found = getattr(importlib.import_module(module), name)(rank, world, device)
    print(json.dumps(found), flush=True)
    dist.barrier()
    # Memory that others have mapped is not tidied up.
    os._exit(0)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
