"""Routing in CUDA C++: a warp has the experts of a token in registers.

The sources are in `cuda`; they are compiled by nvcc at first use. They take up to 512 experts, of
which up to 32 are chosen; more are left to the reference. Of 256 or 384 experts 6 or 8 are found by
a floor that few reach, elsewhere by sorting and taking turns.
"""

import ctypes
import functools
from pathlib import Path

import torch

from jit_kernels.cuda_device import launched
from jit_kernels.cuda_library import load
from jit_kernels.cuda_rows import processors
from jit_kernels.route_topk import reference

_MAX_EXPERTS, _MAX_CHOSEN = 512, 32


def route_topk(
    logits: torch.Tensor, bias: torch.Tensor, top_k: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts by score; see `jit_kernels.route_topk.route_topk`."""
    tokens, count = logits.shape
    top_k = min(top_k, count)
    if count > _MAX_EXPERTS or top_k > _MAX_CHOSEN:
        return reference.route_topk(logits, bias, top_k, scale)
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    bias = bias.contiguous()
    experts = torch.empty((tokens, top_k), dtype=torch.int64, device=logits.device)
    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=logits.device)
    if not experts.numel():
        return experts, weights
    error = launched(
        logits.device,
        _library().route_topk_call,
        *(logits.data_ptr(), logits.stride(0), bias.data_ptr()),
        *(experts.data_ptr(), weights.data_ptr(), tokens, count, top_k, scale),
        processors(logits.device),
    )
    _check("route_topk", error)
    return experts, weights


def route_hashed(
    logits: torch.Tensor, table: torch.Tensor, token_ids: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Look up and weigh experts; see `jit_kernels.route_topk.route_hashed`."""
    tokens, (known, top_k) = logits.shape[0], table.shape
    if top_k > _MAX_CHOSEN:
        token_ids = token_ids.where((token_ids >= 0) & (token_ids < known), known - 1)
        return reference.route_hashed(logits, table, token_ids, scale)
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    experts = torch.empty((tokens, top_k), dtype=torch.int64, device=logits.device)
    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=logits.device)
    if not weights.numel():
        return experts, weights
    error = launched(
        logits.device,
        _library().route_hashed_call,
        *(logits.data_ptr(), logits.stride(0), table.data_ptr(), token_ids.data_ptr()),
        *(experts.data_ptr(), weights.data_ptr(), tokens, known, top_k, scale),
    )
    _check("route_hashed", error)
    return experts, weights


def _check(op: str, error: int) -> None:
    """Raise RuntimeError with the device's words if a launch failed."""
    if error:
        raise RuntimeError(f"{op}: {_library().route_words(error).decode()}")


@functools.cache
def _library() -> ctypes.CDLL:
    library = load("route_topk", Path(__file__).parent / "cuda")
    pointer, number, wide = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
    library.route_topk_call.argtypes = [
        *(pointer, wide, pointer, pointer, pointer),
        *(number, number, number, ctypes.c_float, number, pointer),
    ]
    library.route_hashed_call.argtypes = [
        *(pointer, wide, pointer, pointer, pointer, pointer),
        *(number, number, number, ctypes.c_float, pointer),
    ]
    library.route_words.restype = ctypes.c_char_p
    return library
