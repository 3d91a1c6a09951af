"""Inputs of a step of decoding rows."""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["DecodeRows"]


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """Inputs of a decode step of B rows; the buffers of a graph stay, their contents change.

    input_ids   [B] int64   the token each row computes
    position    [B] int64   of that token; -1: the row only pads the batch, it reads nothing and
                writes unit 0 of each pool
    page_table  [B, P] int32   full pages through `position`; P is that of the longest context
    window      [B, W] int32   SWA pages, read and written in place
    ring        [B] int32      read and written in place; no two rows share one but 0
    """

    input_ids: Tensor
    position: Tensor
    page_table: Tensor
    window: Tensor
    ring: Tensor

    @classmethod
    def empty(
        cls, rows: int, *, pages: int, window_pages: int, device: torch.device
    ) -> "DecodeRows":
        """Return buffers of `rows` rows, all of them padding."""

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            input_ids=zeros(rows, dtype=torch.int64),
            position=zeros(rows, dtype=torch.int64).fill_(-1),
            page_table=zeros(rows, pages, dtype=torch.int32),
            window=zeros(rows, window_pages, dtype=torch.int32),
            ring=zeros(rows, dtype=torch.int32),
        )
