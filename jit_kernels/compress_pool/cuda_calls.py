"""Calls of the library of compression: blocks of 4, blocks of 128, indexer queries in CUDA C++.

Its sources are in `cuda`; nvcc compiles them at first use. A call is handed over as the bytes of a
struct of theirs: one conversion instead of thirty. Parts of such structs have their form here.
"""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING

import torch

from jit_kernels.cuda_device import launched
from jit_kernels.cuda_library import load
from jit_kernels.cuda_rows import is_aligned

if TYPE_CHECKING:
    from jit_kernels.compress_pool import BlockPages, EndedBlocks

__all__ = [
    "CHUNKS",
    "ENDED",
    "PAGES",
    "ROWS",
    "SAVES",
    "STATE",
    "TURNED",
    "aligned",
    "ended_fields",
    "launch",
    "page_fields",
    "takes_pages",
]

# As in `struct`, in the order of the fields; a part ends where the next pointer may begin.
ROWS, STATE, ENDED, PAGES = "PPq", "Pi4x", "PP", "PPqiii4x"
CHUNKS, SAVES = "PPPPP", "PPPqi4x"
# Channels that turn.
TURNED = 64
# Integers that each entry takes after a call's bytes and their number.
_MORE = {
    "pool_tokens": 1,
    "pool_chunks": 1,
    "fold_tokens": 1,
    "fold_chunks": 0,
    "turn_queries": 1,
}


def launch(
    entry: str, device: torch.device, form: Struct, fields: tuple[float, ...], *more: int
) -> None:
    """Launch an entry of the library on the current stream of a device.

    form, fields  the struct of the call, pointers as integers
    more          what the entry takes besides, see `cuda/compress.cu`

    Raises RuntimeError with the device's words if it cannot be launched.
    """
    packed = form.pack(*fields)
    error = launched(device, _entry(entry), packed, len(packed), *more)
    if error:
        raise RuntimeError(f"{entry}: {_library().compress_words(error).decode()}")


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or a copy of it if its rows do not begin at multiples of 16 bytes."""
    return tensor if is_aligned(tensor) else tensor.clone(memory_format=torch.contiguous_format)


def takes_pages(pages: "BlockPages", channels: int) -> bool:
    """Say whether kernels can store rows of so many channels in these pages."""
    return (
        pages.weight.shape[0] == channels
        and not pages.layout.page_bytes % 16
        and is_aligned(pages.pages)
        and is_aligned(pages.weight)
    )


def ended_fields(ended: "EndedBlocks") -> tuple[torch.Tensor, torch.Tensor]:
    """Return slots and rotation as kernels take them; keep them until the launch."""
    return ended.slots.contiguous(), aligned(ended.rotation.contiguous())


def page_fields(pages: "BlockPages") -> tuple[int, ...]:
    """Return the fields of PAGES."""
    layout = pages.layout
    return (
        *(pages.pages.data_ptr(), pages.weight.data_ptr(), layout.page_bytes),
        *(layout.page_rows, layout.data_bytes, layout.scale_bytes),
    )


@functools.cache
def _entry(name: str) -> Callable[..., int]:
    return getattr(_library(), f"{name}_call")


@functools.cache
def _library() -> ctypes.CDLL:
    library = load("compress", Path(__file__).parent / "cuda")
    for name, count in _MORE.items():
        more = (ctypes.c_int,) * (1 + count)
        getattr(library, f"{name}_call").argtypes = [ctypes.c_char_p, *more, ctypes.c_void_p]
    library.compress_words.restype = ctypes.c_char_p
    return library
