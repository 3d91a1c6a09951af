"""Forms of expert weights in CUDA C++, compiled at first use."""

import ctypes
import functools
from pathlib import Path

import torch

from jit_kernels.cuda_device import launched
from jit_kernels.cuda_library import load


def expand_fp4(
    words: torch.Tensor, scales: torch.Tensor, codes: torch.Tensor, block_scales: torch.Tensor
) -> torch.Tensor:
    """Expand; see `jit_kernels.expert_weights.expand_fp4`."""
    count, rows, columns = codes.shape
    lost = torch.zeros(count, dtype=torch.int32, device=codes.device)
    if codes.numel():
        words, scales = words.contiguous(), scales.contiguous()
        error = launched(
            codes.device,
            _library().expand_fp4_call,
            *(words.data_ptr(), scales.data_ptr(), codes.data_ptr(), block_scales.data_ptr()),
            *(lost.data_ptr(), count, rows, columns),
        )
        if error:
            raise RuntimeError(f"expand_fp4: {_library().expert_weights_words(error).decode()}")
    return lost


@functools.cache
def _library() -> ctypes.CDLL:
    library = load("expert_weights", Path(__file__).parent / "cuda")
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.expand_fp4_call.argtypes = [
        *(pointer, pointer, pointer, pointer, pointer, number, number, number, pointer)
    ]
    library.expert_weights_words.restype = ctypes.c_char_p
    return library
