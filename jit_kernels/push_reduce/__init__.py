"""Sums over the GPUs of one host by a kernel that writes into the memory of all of them.

Each call of a rank waits for the same call of all others. Sums are float32, in the order of ranks,
so that all ranks get the same bits. The kernel can be part of a CUDA graph. Its source is in
`cuda`; nvcc compiles it at first use.
"""

import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from jit_kernels.cuda_device import launched
from jit_kernels.cuda_library import load
from jit_kernels.cuda_rows import processors

__all__ = ["PushReduce", "most_bytes", "why_no_peers"]

# Each rank writes all its numbers to each other one: the more ranks, the sooner it pays to sum a
# part for all instead.
_MOST_BYTES = {2: 4 << 20, 4: 1 << 20, 8: 512 << 10}
_VECTOR, _GENERATIONS, _STATE_WORDS = 16, 3, 4


def most_bytes(world: int) -> int:
    """Return how much is summed at once over so many ranks; more is faster otherwise."""
    return _MOST_BYTES[world]


class PushReduce:
    """The memory of all ranks, as one of them sees it; calls come one after another."""

    def __init__(
        self,
        rank: int,
        world: int,
        device: torch.device,
        *,
        exchange: Callable[[bytes], Sequence[bytes]],
        limit_s: float,
    ) -> None:
        """Allocate this rank's memory, and map that of the others.

        exchange  returns what all ranks give it, in their order
        limit_s   how long a call waits for others before it ends as a CUDA error; 0: for ever
        Raises RuntimeError with the device's words.
        """
        self._rank, self._world, self._limit_ns = rank, world, int(limit_s * 1e9)
        self._most = most_bytes(world)
        self._state = torch.zeros(_STATE_WORDS, dtype=torch.int32, device=device)
        library = _library()
        handle = ctypes.create_string_buffer(library.push_reduce_handle_bytes())
        own = ctypes.c_void_p()
        with torch.cuda.device(device):
            size = _GENERATIONS * world * self._most
            _check(library.push_reduce_allocate(size, ctypes.byref(own), handle))
            memory = [own if other == rank else None for other in range(world)]
            for other, told in enumerate(exchange(handle.raw)):
                if other != rank:
                    memory[other] = there = ctypes.c_void_p()
                    _check(library.push_reduce_open(told, ctypes.byref(there)))
        self._memory = (ctypes.c_void_p * world)(*(one.value for one in memory if one is not None))

    def takes(self, partial: torch.Tensor) -> bool:
        """Say whether a call sums such numbers: bfloat16, whole vectors, not too many."""
        return (
            partial.dtype == torch.bfloat16
            and partial.is_contiguous()
            and not (partial.nbytes % _VECTOR or partial.data_ptr() % _VECTOR)
            and 0 < partial.nbytes <= self._most
        )

    def __call__(self, partial: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' `partial`, of one shape that `takes` takes.

        A word of two zeros counts as one of two negative zeros.
        """
        out = torch.empty_like(partial)
        error = launched(
            partial.device,
            _library().push_reduce_call,
            *(partial.data_ptr(), out.data_ptr(), self._state.data_ptr(), self._memory),
            *(partial.nbytes // _VECTOR, self._most // _VECTOR, self._rank, self._world),
            *(processors(partial.device), self._limit_ns),
        )
        _check(error)
        return out


def why_no_peers(device: torch.device, world: int, first: int) -> str | None:
    """Return what stands against writing into the memory of devices `first` to `first + world`."""
    for other in range(first, first + world):
        if other != device.index and not torch.cuda.can_device_access_peer(device, other):
            return f"device {device.index} cannot reach the memory of device {other}"
    return None


def _check(error: int) -> None:
    if error:
        raise RuntimeError(f"push_reduce: {_library().push_reduce_words(error).decode()}")


@functools.cache
def _library() -> ctypes.CDLL:
    library = load("push_reduce", Path(__file__).parent / "cuda")
    pointer, number, wide = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
    library.push_reduce_allocate.argtypes = [wide, pointer, pointer]
    library.push_reduce_open.argtypes = [pointer, pointer]
    library.push_reduce_call.argtypes = [
        *(pointer, pointer, pointer, pointer),
        *(number, number, number, number, number, wide, pointer),
    ]
    library.push_reduce_words.restype = ctypes.c_char_p
    return library
