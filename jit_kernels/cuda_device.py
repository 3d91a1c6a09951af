"""What this machine lacks for kernels on a CUDA device."""

import functools
import importlib.util
import os
import shutil

import torch

__all__ = ["nvcc", "why_no_hopper", "why_no_nvcc", "why_no_triton"]


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
    if reason is None and torch.cuda.get_device_capability() < (9, 0):
        return "the device is older than Hopper"
    return reason


def nvcc() -> str | None:
    """Return the path of the CUDA compiler: that of CUDA_HOME, else the one on the PATH."""
    home = os.environ.get("CUDA_HOME")
    if home:
        return shutil.which("nvcc", path=os.path.join(home, "bin"))
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
