"""Numbers of GGUF files: blocks of 32 inputs with their own scale, to float32.

Q8_0   float16 scale d, 32 int8 q            d q
Q4_1   float16 scale d, float16 least m,     d q + m
       16 bytes: q of input i in the low half of byte i, of input i + 16 in the high half
"""

import torch
from torch import Tensor

__all__ = ["STORED", "expand", "row_bytes"]

BLOCK = 32
# Bytes of a block.
_BLOCK_BYTES = {"Q4_1": 20, "Q8_0": 34}
STORED = ("F32", *_BLOCK_BYTES)


def row_bytes(kind: str, columns: int) -> int:
    """Return the bytes of a row. Raises ValueError for one that is not whole blocks."""
    if kind == "F32":
        return 4 * columns
    if columns % BLOCK:
        raise ValueError(f"a row of {columns} is not whole blocks of {BLOCK}")
    return columns // BLOCK * _BLOCK_BYTES[kind]


def expand(data: Tensor, kind: str) -> Tensor:
    """Return the numbers of rows.

    data  [R, bytes] uint8, contiguous
    kind  one of `STORED`

    Returns [R, columns] float32.
    """
    if kind == "F32":
        return data.view(torch.float32)
    blocks = data.view(len(data), -1, _BLOCK_BYTES[kind])
    scale = blocks[..., :2].contiguous().view(torch.float16).to(torch.float32)
    if kind == "Q8_0":
        return (blocks[..., 2:].view(torch.int8) * scale).flatten(1)
    least = blocks[..., 2:4].contiguous().view(torch.float16).to(torch.float32)
    packed = blocks[..., 4:]
    return (torch.cat((packed & 15, packed >> 4), -1) * scale + least).flatten(1)
