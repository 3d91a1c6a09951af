"""What a device's memory is used for, measured before anything is served."""

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from runtime.errors import MemoryShortage
from runtime.rank_memory import RankMemory

__all__ = [
    "ACTIVATIONS",
    "GRAPHS",
    "OTHERS",
    "POOLS",
    "WEIGHTS",
    "Advice",
    "CudaMemory",
    "DeviceMemory",
    "MemoryParts",
    "MemoryUse",
    "is_out_of_memory",
]

WEIGHTS, ACTIVATIONS, GRAPHS = "weights", "activations", "CUDA graphs"
POOLS, OTHERS = "KV pools", "others"
_GIB = 1 << 30


class DeviceMemory(Protocol):
    """The memory of one device."""

    @property
    def total(self) -> int:
        """Bytes that there are."""
        ...

    def used(self) -> int:
        """Return the bytes in use, by whomever; what is only kept for later is given back."""
        ...

    def peak_of(self, run: Callable[[], None]) -> int:
        """Return the most bytes that `run` had at once, beyond what was there before."""
        ...


class CudaMemory:
    """The memory of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def total(self) -> int:
        """Bytes that there are."""
        return torch.cuda.mem_get_info(self._device)[1]

    def used(self) -> int:
        """Return the bytes in use, by whomever; what is only kept for later is given back."""
        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free

    def peak_of(self, run: Callable[[], None]) -> int:
        """Return the most bytes that `run` had at once, beyond what was there before.

        Whole segments are counted, as torch took them from the device.
        """
        self.used()
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_reserved(self._device)
        run()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_reserved(self._device) - before


# What makes a part smaller, by the part's name.
Advice = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of a device, by what they are for.

    total        of the device
    limit        that may be used, by --mem-fraction-static
    others       in use before anything was loaded: other processes, the driver
    weights      with what kernels keep for themselves
    activations  most that a step takes
    graphs       of decode steps
    """

    total: int
    limit: int
    others: int
    weights: int
    activations: int
    graphs: int

    @property
    def left(self) -> int:
        """Bytes for pools within the limit; below 0 where there are none."""
        return self.limit - self._taken

    @property
    def room(self) -> int:
        """Bytes for pools, whatever the limit."""
        return self.total - self._taken

    @property
    def _taken(self) -> int:
        return self.others + self.weights + self.activations + self.graphs

    def pool_budget(self, wanted: int | None, advice: Advice) -> int:
        """Return the bytes for pools: `wanted` by flag, or all that are left.

        Raises MemoryShortage, with the advice on the largest part first, where that does not fit.
        """
        if wanted is not None and wanted > self.room:
            raise MemoryShortage(
                f"--kv-cache-bytes {wanted} is more than the {max(0, self.room)} bytes that the "
                f"device has left ({self.told()}): lower it, or {self._less(advice)}"
            )
        if wanted is None and self.left <= 0:
            raise MemoryShortage(
                f"nothing is left for the KV pools ({self.told()}): raise --mem-fraction-static, "
                f"or {self._less(advice)}"
            )
        return self.left if wanted is None else wanted

    def _less(self, advice: Advice) -> str:
        sizes = self._parts()
        ordered = sorted(sizes.keys() & advice.keys(), key=lambda name: -sizes[name])
        return ", or ".join(f"for less {name} {advice[name]}" for name in ordered if sizes[name])

    def _parts(self) -> dict[str, int]:
        return {
            WEIGHTS: self.weights,
            ACTIVATIONS: self.activations,
            GRAPHS: self.graphs,
            OTHERS: self.others,
        }

    def told(self, pools: int | None = None) -> str:
        """Return one line with every part, in GiB."""
        parts = self._parts() if pools is None else {**self._parts(), POOLS: pools}
        limit, total = self.limit / _GIB, self.total / _GIB
        return f"GiB: {_listed(parts)}; limit {limit:.2f} of {total:.2f}"

    def of_rank(self, rank: int, pools: int, *, free: int) -> RankMemory:
        """Return what is told of a rank.

        pools  bytes of its pools
        free   bytes that nobody uses
        """
        return RankMemory(
            rank,
            weight_bytes=self.weights,
            pool_bytes=pools,
            activation_bytes=self.activations,
            graph_bytes=self.graphs,
            total_bytes=self.total,
            free_bytes=free,
        )

    def facts(self) -> dict[str, int]:
        """Return what /server_info tells."""
        return {
            "device_memory_bytes": self.total,
            "weight_bytes": self.weights,
            "activation_bytes": self.activations,
            "graph_bytes": self.graphs,
        }


class MemoryParts:
    """What of a device's memory is taken while a model is loaded, and by what."""

    def __init__(self, total: int, advice: Advice, *, others: int) -> None:
        """Begin with `others` of the device's `total` bytes in use."""
        self._total, self._advice = total, advice
        self._taken = {OTHERS: others}

    def note(self, name: str, size: int) -> None:
        """Take down that part `name` has `size` bytes."""
        self._taken[name] = size

    @contextlib.contextmanager
    def fitting(self, name: str, size: int | None = None) -> Iterator[None]:
        """Raise MemoryShortage where the device has not the memory for part `name`.

        The error names the largest part, which need not be the one that found no room.

        size  bytes of the part; None: not known
        """
        try:
            yield
        except RuntimeError as fault:
            if not is_out_of_memory(fault):
                raise
            raise MemoryShortage(self._shortage(name, size)) from fault

    def _shortage(self, name: str, size: int | None) -> str:
        taken = {part: held for part, held in self._taken.items() if part != name}
        left = max(0, self._total - sum(taken.values()))
        wanted = f"more than the {left / _GIB:.2f} left" if size is None else f"{size / _GIB:.2f}"
        sizes = taken | {name: left if size is None else size}
        largest = max(sizes, key=sizes.__getitem__)
        advice = [self._advice[part] for part in dict.fromkeys((largest, name))]
        return (
            f"out of device memory: most of it is for {largest} (GiB: {_listed(taken)}, {name} "
            f"{wanted}; device {self._total / _GIB:.2f}): {', or '.join(advice)}"
        )


def is_out_of_memory(fault: Exception) -> bool:
    """Whether torch, a library or the driver found no memory: few have an error for it."""
    if isinstance(fault, torch.OutOfMemoryError | MemoryError):
        return True
    marks = ("out of memory", "OUT_OF_MEMORY", "ALLOC_FAILED", "can't allocate memory")
    return any(mark in str(fault) for mark in marks)


def _listed(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size / _GIB:.2f}" for name, size in parts.items())
