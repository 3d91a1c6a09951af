"""All experts' weights in one tensor of a file, as gpt-oss has them: put apart on the way.

    plain   [E, in, out]             a product's weight turned round, as transformers saves it
    packed  [E, out, in / 32, 16]    two e2m1 codes a byte, the even input in the low nibble, with
                                     e8m0 scales [E, out, in / 32] uint8 (mxfp4, as published)
    biases  [E, out]

Where a product makes gates and inputs of gates, its outputs are both in turn in files, and all of
one before all of the other in storage.
"""

import math

import torch
from torch import Tensor

from layers.parallel.shares import Size, whole
from layers.weights.quant import FP4_GROUP, dequantise_fp4

__all__ = ["StackedWeight"]

_BLOCK_BYTES = FP4_GROUP // 2


class StackedWeight:
    """Where such a tensor goes, or the part of it that a rank keeps.

    storage  [E, outputs, inputs], or [E, outputs]
    """

    def __init__(
        self,
        storage: Tensor,
        rows: Size,
        columns: Size | None,
        *,
        gated: bool = False,
        packed: bool = False,
    ) -> None:
        """Take the storage, [E, outputs, inputs] of any floating dtype.

        rows     outputs; gates alone where it is gated
        columns  inputs; None: these are biases, and the storage is [E, outputs]
        gated    outputs are gates and inputs of gates
        packed   the file holds codes
        """
        self.storage, self._gated, self.packed = storage, gated, packed
        self._rows, self._columns = whole(rows), None if columns is None else whole(columns)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape in the file. A packed weight's inputs are rounded down to blocks."""
        experts, outputs = self.storage.shape[0], self._rows.total * (1 + self._gated)
        if self._columns is None:
            return experts, outputs
        if self.packed:
            return experts, outputs, self._columns.total // FP4_GROUP, _BLOCK_BYTES
        return experts, self._columns.total, outputs

    @property
    def device(self) -> torch.device:
        """Return where the storage is."""
        return self.storage.device

    def put(self, stored: Tensor, scales: Tensor | None = None) -> None:
        """Store what a file holds, of `shape`.

        scales  [E, out, in / 32] float8_e8m0fnu of packed weights
        """
        for expert, weight in enumerate(stored):
            # Codes are a quarter of the numbers: they travel, and are expanded where they arrive.
            here = weight.to(self.device)
            if scales is not None:
                self._put_one(expert, _expanded(here.flatten(1), scales[expert].to(self.device)))
            else:
                self._put_one(expert, here.T if here.dim() == 2 else here)

    def fill_random(self, generator: torch.Generator, gain: float) -> None:
        """Store normal numbers of variance `gain^2 / in`, biases of a tenth, whatever the form."""
        outputs, inputs = self.shape[1] if self.packed else self.shape[-1], self._columns
        shape = (outputs,) if inputs is None else (outputs, inputs.total)
        spread = 0.1 if inputs is None else gain / math.sqrt(inputs.total)
        for expert in range(self.storage.shape[0]):
            numbers = torch.empty(shape, device=self.device)
            self._put_one(expert, numbers.normal_(0.0, spread, generator=generator))

    def _put_one(self, expert: int, dense: Tensor) -> None:
        """Store one expert's numbers, [out, in], or [out]."""
        parts = dense.unflatten(0, (-1, 1 + self._gated)).transpose(0, 1)[:, self._rows.part]
        if self._columns is not None:
            parts = parts[:, :, self._columns.part]
        self.storage[expert].copy_(parts.flatten(0, 1))


def _expanded(packed: Tensor, scales: Tensor) -> Tensor:
    shape = (packed.shape[0], 2 * packed.shape[1])
    out = torch.empty(shape, dtype=torch.float32, device=packed.device)
    dequantise_fp4(packed, scales, out)
    return out
