"""A process that makes calls of DeepGEMM so that what it would compile is known.

`python -m jit_kernels.kernel_recorder DEVICE REPORT` reads calls (see `vendor_calls`) and writes
to REPORT what went wrong, as a JSON list. The environment names a compiler that compiles nothing;
see `kernels_ahead`.
"""

import json
import signal
import sys
from pathlib import Path

import torch

from jit_kernels.vendor_calls import from_json, make

__all__ = ["record"]

# Nobody waits for longer.
LIMIT_S = 180


def record(text: str, device: torch.device) -> list[str]:
    """Make the calls of `text`; return what went wrong, each once."""
    faults: dict[str, None] = {}
    for calls in from_json(text):
        try:
            make(calls, device)
        # Other calls may do, and those that do not are compiled when they are met.
        except Exception as error:
            faults[f"{calls.folder}: {type(error).__name__}: {error}"] = None
        # The server is using the device, too.
        torch.cuda.empty_cache()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return [*faults]


if __name__ == "__main__":
    signal.alarm(LIMIT_S)
    where = torch.device(sys.argv[1])
    if where.type == "cuda":
        torch.cuda.set_device(where)
    Path(sys.argv[2]).write_text(json.dumps(record(sys.stdin.read(), where)), encoding="utf-8")
