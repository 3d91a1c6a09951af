"""What a device's memory is used for, measured before anything is served."""

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from runtime.errors import ConfigError

__all__ = ["CudaMemory", "DeviceMemory", "MemoryUse", "fitting"]

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

    def pool_budget(self, wanted: int | None) -> int:
        """Return the bytes for pools: `wanted` by flag, or all that are left.

        Raises ConfigError, naming the flags that help, where that does not fit.
        """
        if wanted is not None and wanted > self.room:
            raise ConfigError(
                f"--kv-cache-bytes {wanted} is more than the {max(0, self.room)} bytes that the "
                f"device has left ({self.told()}): lower it, or {_LESS}"
            )
        if wanted is None and self.left <= 0:
            raise ConfigError(
                f"nothing is left for the KV pools ({self.told()}): raise --mem-fraction-static, "
                f"or {_LESS}"
            )
        return self.left if wanted is None else wanted

    def told(self, pools: int | None = None) -> str:
        """Return one line with every part, in GiB."""
        parts = {
            "weights": self.weights,
            "activations": self.activations,
            "CUDA graphs": self.graphs,
            **({} if pools is None else {"KV pools": pools}),
            "others": self.others,
        }
        listed = ", ".join(f"{name} {size / _GIB:.2f}" for name, size in parts.items())
        limit, total = self.limit / _GIB, self.total / _GIB
        return f"GiB: {listed}; limit {limit:.2f} of {total:.2f}"

    def facts(self) -> dict[str, int]:
        """Return what /server_info tells."""
        return {
            "device_memory_bytes": self.total,
            "weight_bytes": self.weights,
            "activation_bytes": self.activations,
            "graph_bytes": self.graphs,
        }


_LESS = (
    "take less: --chunked-prefill-size, --max-running-requests and --context-length bound "
    "activations, --cuda-graph-bs graphs, --experts fp4 weights"
)


@contextlib.contextmanager
def fitting(what: str, advice: str) -> Iterator[None]:
    """Raise ConfigError where the device has not the memory for `what`."""
    try:
        yield
    except torch.OutOfMemoryError as fault:
        raise ConfigError(f"{what} take more memory than the device has: {advice}") from fault
