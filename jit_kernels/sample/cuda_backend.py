"""Sampling in CUDA C++: eight blocks hold a row in their registers, and no logits are sorted.

The sources are in `cuda`; they are compiled by nvcc at first use.
"""

import ctypes
import functools
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from jit_kernels.cuda_device import launched
from jit_kernels.cuda_library import load

if TYPE_CHECKING:
    from jit_kernels.sample import DrawParams


def sample_unread(
    logits: torch.Tensor, params: "DrawParams", keys: torch.Tensor | None
) -> torch.Tensor:
    """Draw one token a row without the host; see `jit_kernels.sample.sample_unread`."""
    if keys is None or not params.draws:
        return logits.argmax(-1)
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    rows, vocab = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if not rows:
        return tokens
    parts = (params.temperature, params.top_k, params.top_p, params.min_p, keys)
    dense = [part.contiguous() for part in parts]
    error = launched(
        logits.device,
        _library().sample_call,
        *(logits.data_ptr(), logits.stride(0), *(part.data_ptr() for part in dense)),
        *(tokens.data_ptr(), rows, vocab, params.filters),
    )
    if error:
        raise RuntimeError(f"sample_unread: {_library().sample_words(error).decode()}")
    return tokens


@functools.cache
def _library() -> ctypes.CDLL:
    library = load("sample", Path(__file__).parent / "cuda")
    pointer, number, wide = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
    library.sample_call.argtypes = [
        *(pointer, wide, *[pointer] * 6),
        *(number, number, number, pointer),
    ]
    library.sample_words.restype = ctypes.c_char_p
    return library
