"""What of a host's memory a network on the CPU takes."""

import os
from pathlib import Path

from torch import Tensor

from layers.weights.loading import NamedWeights
from layers.weights.part import Part

__all__ = ["free_host_bytes", "total_host_bytes", "weight_bytes"]

_FREE = "MemAvailable:"


def weight_bytes(network: NamedWeights) -> int:
    """Return the bytes of a network's weights in plain numbers; shared storage counts once."""
    sizes: dict[int, int] = {}
    for _, target in network.named_weights():
        kept = target.target if isinstance(target, Part) else target
        if isinstance(kept, Tensor):
            storage = kept.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def total_host_bytes() -> int:
    """Return the bytes of the host's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def free_host_bytes() -> int:
    """Return the bytes that processes may still take, as Linux has it; elsewhere 0: not known."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    kib = [line.split()[1] for line in lines if line.startswith(_FREE)]
    return int(kib[0]) << 10 if kib else 0
