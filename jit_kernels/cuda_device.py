"""What this machine lacks for kernels on a CUDA device, and how C functions launch them there."""

import functools
import importlib.util
import os
import shutil
from collections.abc import Callable
from typing import Any

import torch

__all__ = [
    "HOPPER",
    "current_device",
    "launched",
    "nvcc",
    "raw_stream",
    "why_no_hopper",
    "why_no_nvcc",
    "why_no_triton",
]

# Major compute capability of the devices that CUDA C++ here is for.
HOPPER = 9

# Triton and compiled graphs ask the same functions; builds of torch without CUDA lack them.
_TORCH: Any = torch._C  # pyright: ignore[reportPrivateUsage]


@functools.cache
def why_no_triton() -> str | None:
    """Return what stands against Triton kernels on this machine, None when they run."""
    if not torch.cuda.is_available():
        return "no CUDA device"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    return None


@functools.cache
def why_no_nvcc() -> str | None:
    """Return what stands against CUDA C++ compiled at first use, None when it runs."""
    if not torch.cuda.is_available():
        return "no CUDA device"
    if nvcc() is None:
        return "no CUDA compiler: put nvcc on the PATH, or name its toolkit in CUDA_HOME"
    return None


@functools.cache
def why_no_hopper() -> str | None:
    """Return what stands against CUDA C++ for Hopper beside Triton, None when both run."""
    reason = why_no_triton() or why_no_nvcc()
    if reason is None and torch.cuda.get_device_capability()[0] != HOPPER:
        return f"{torch.cuda.get_device_name()} is no Hopper GPU"
    return reason


def nvcc() -> str | None:
    """Return the path of the CUDA compiler: that of CUDA_HOME, else the one on the PATH."""
    home = os.environ.get("CUDA_HOME")
    if home:
        return shutil.which("nvcc", path=os.path.join(home, "bin"))
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def launched(device: torch.device, function: Callable[..., int], *arguments: Any) -> int:
    """Call `function(*arguments, stream)` on the current stream of a device; return what it says.

    device     of the tensors whose addresses are handed over; its index is set, as theirs always is
    function   a C function whose last argument is a stream, by its raw handle

    A launch is a matter of microseconds, and so are `torch.cuda.device` and
    `torch.cuda.current_stream`: where the device is the current one, both are spared.
    """
    index = device.index
    if index == current_device():
        return function(*arguments, raw_stream(index))
    with torch.cuda.device(index):
        return function(*arguments, raw_stream(index))


def current_device() -> int:
    """Return the index of the current CUDA device; some tensor must have been made on one."""
    return _TORCH._cuda_getDevice()


def raw_stream(index: int) -> int:
    """Return the raw handle of the current stream of a device."""
    return _TORCH._cuda_getCurrentRawStream(index)
