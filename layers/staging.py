"""Host arrays on their way to a device, and tensors on their way back, without waiting for it.

Pinned memory that torch gave out is not given out again before the copies from it are done, so
that what is staged here may be forgotten at once.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

__all__ = ["Fetched", "room", "stage", "stage_together"]

# Kernels are specialised on how their pointers are aligned.
_ALIGNMENT = 64
_DTYPES = {np.dtype(np.int64): torch.int64, np.dtype(np.int32): torch.int32}


def room(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return host memory, of any content; copies between it and `device` need no waiting."""
    pinned = device.type == "cuda"
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=pinned)


def stage(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return `array` on `device`; the host goes on while the copy is under way."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def stage_together(
    arrays: Mapping[str, np.ndarray], device: torch.device
) -> dict[str, torch.Tensor]:
    """Return all arrays, int64 or int32, on `device`, copied at once into one allocation.

    A copy has a price of its own, whatever its size.
    """
    offset = 0
    starts: dict[str, int] = {}
    for name, array in arrays.items():
        starts[name] = offset
        offset += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    packed = room((offset,), torch.uint8, device)
    raw = packed.numpy()
    rooms = {dtype: raw.view(dtype) for dtype in _DTYPES}
    for name, array in arrays.items():
        first = starts[name] // array.itemsize
        rooms[array.dtype][first : first + array.size] = array.ravel()
    there = packed.to(device, non_blocking=True)
    wholes = {dtype: there.view(kind) for dtype, kind in _DTYPES.items()}
    staged: dict[str, torch.Tensor] = {}
    for name, array in arrays.items():
        first = starts[name] // array.itemsize
        part = wholes[array.dtype][first : first + array.size]
        staged[name] = part if array.ndim == 1 else part.view(array.shape)
    return staged


class Fetched:
    """Tensors on their way to the host, as they were when this was made."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        """Launch the copies."""
        self._there = [_on_its_way(tensor) for tensor in tensors]
        self._arrived: torch.cuda.Event | None = None
        if any(tensor.is_cuda for tensor in tensors):
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def read(self) -> list[torch.Tensor]:
        """Wait for them, and return them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._there


def _on_its_way(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_cuda:
        return tensor.clone()
    return room(tensor.shape, tensor.dtype, tensor.device).copy_(tensor, non_blocking=True)
