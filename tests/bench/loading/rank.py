"""One rank that loads its share of a checkpoint, as a process of its own.

It allocates its network, says so in a line, waits for a line, loads, and prints what that took.
"""

import dataclasses
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from layers.models.deepseek_v4.config import load_config
from layers.models.deepseek_v4.model import QuantisedV4
from layers.parallel.ranks import OneRank
from layers.parallel.shares import Shares
from layers.weights.loading import NamedWeights, load_weights
from layers.weights.part import Part
from layers.weights.stacked import StackedWeight
from layers.weights.weight_target import WeightTarget

__all__ = ["LoneRank", "load_share"]

_SAMPLE_S = 0.01
_STATUS = Path("/proc/self/status")
_ANONYMOUS = "RssAnon:"


class LoneRank(OneRank):
    """A rank that loads and exchanges nothing."""

    def __init__(self, shares: Shares) -> None:
        self.shares = shares


class _Peak:
    """The most private memory, in bytes, that this process had while it was watched."""

    def __init__(self) -> None:
        self.most = _anonymous_bytes()
        self._over = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch for as long as the block runs."""
        watcher = threading.Thread(target=self._watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            self._over.set()
            watcher.join()

    def _watch(self) -> None:
        while not self._over.wait(_SAMPLE_S):
            self.most = max(self.most, _anonymous_bytes())


class _Copied:
    """Takes the place of quantised storage: numbers are copied once, and dropped."""

    def __init__(self, target: WeightTarget) -> None:
        self.shape, self.device, self.why_not = target.shape, target.device, target.why_not

    def put_plain(self, weight: Tensor) -> None:
        """Copy it."""
        weight.clone()

    def put_fp8(self, codes: Tensor, scales: Tensor) -> None:
        """Copy both."""
        codes.clone()
        scales.clone()

    def put_fp4(self, packed: Tensor, scales: Tensor) -> int:
        """Copy both."""
        self.put_fp8(packed, scales)
        return 0

    def fill_random(self, generator: torch.Generator, gain: float) -> None:
        """Keep nothing."""


class _Reading:
    """A network whose quantised weights are read and cut, but not arranged for kernels."""

    def __init__(self, network: NamedWeights) -> None:
        self._network = network

    def named_weights(self) -> Iterator[tuple[str, Tensor | WeightTarget | Part]]:
        """Yield the weights, with storage that drops them."""
        for name, target in self._network.named_weights():
            assert not isinstance(target, StackedWeight), "V4 files have experts one by one"
            kept = target.target if isinstance(target, Part) else target
            if isinstance(kept, Tensor):
                yield name, target
            elif isinstance(target, Part):
                yield name, dataclasses.replace(target, target=_Copied(kept))
            else:
                yield name, _Copied(kept)


def load_share(
    folder: Path, shares: Shares, device: torch.device, *, arrange: bool
) -> dict[str, float]:
    """Load a rank's share, once a line has come; return seconds and bytes.

    arrange  weights for kernels, as a server does; else they are read and dropped

    kept    of the device, for weights
    beyond  of the host, at most, besides page cache and (on the CPU) what is kept
    """
    empty = _anonymous_bytes()
    network = QuantisedV4(load_config(folder), device, experts="fp4", ranks=LoneRank(shares))
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    before, began, peak = _anonymous_bytes(), time.monotonic(), _Peak()
    with peak.watched():
        filled = network if arrange else _Reading(network)
        load_weights(filled, folder, progress=False, turn=(shares.rank, shares.world))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    seconds = time.monotonic() - began
    if device.type == "cuda":
        kept, grown = torch.cuda.memory_allocated(device), peak.most - before
    else:
        kept, grown = _anonymous_bytes() - empty, peak.most - _anonymous_bytes()
    return {"seconds": seconds, "kept": kept, "beyond": max(0, grown)}


def main() -> None:
    """Load as the arguments say: FOLDER RANK WORLD DEVICE arrange|drop."""
    folder, rank, world, kind, what = sys.argv[1:]
    device = torch.device(kind, int(rank)) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    shares = Shares(int(rank), int(world))
    told = load_share(Path(folder), shares, device, arrange=what == "arrange")
    print(json.dumps(told), flush=True)


def _anonymous_bytes() -> int:
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(_ANONYMOUS):
            return int(line.split()[1]) << 10
    return 0


if __name__ == "__main__":
    main()
