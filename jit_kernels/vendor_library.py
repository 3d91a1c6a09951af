"""What stands against a vendor's library of Hopper kernels on this machine."""

import functools
import importlib.util

import torch

from jit_kernels.cuda_device import HOPPER

__all__ = ["why_no_deep_gemm", "why_no_fa3", "why_no_flash_mla"]


@functools.cache
def why_no_deep_gemm() -> str | None:
    """Return what stands against DeepGEMM on this machine, None when it runs."""
    return _why_not("deep_gemm")


@functools.cache
def why_no_fa3() -> str | None:
    """Return what stands against FlashAttention 3 on this machine, None when it runs."""
    return _why_not("flash_attn_interface")


@functools.cache
def why_no_flash_mla() -> str | None:
    """Return what stands against FlashMLA on this machine, None when it runs."""
    return _why_not("flash_mla")


def _why_not(module: str) -> str | None:
    if not torch.cuda.is_available():
        return "no CUDA device"
    if torch.cuda.get_device_capability()[0] != HOPPER:
        return f"{module} is used on Hopper only, this is {torch.cuda.get_device_name()}"
    if importlib.util.find_spec(module) is None:
        return f"{module} is not installed"
    return None
