"""Packed token masks of grammars as tensors."""

import numpy as np
import torch

from runtime.executor.step_plan import SampleState

_WORD_BITS = 32


def unpack_masks(states: list[SampleState], vocab_size: int, device: torch.device) -> torch.Tensor:
    """Return [s, V] bool, what each state's constraint allows; the masks must be known.

    They travel packed, a bit a token, and are unpacked on the device.
    """
    words = -(-vocab_size // _WORD_BITS)
    packed = np.zeros((len(states), words), dtype=np.int32)
    for row, state in enumerate(states):
        allowed = None if state.constraint is None else state.constraint.allowed
        assert allowed is not None, "sampled before its grammar said what may come next"
        packed[row] = allowed
    bits = torch.from_numpy(packed).to(device).unsqueeze(-1)
    shifts = torch.arange(_WORD_BITS, dtype=torch.int32, device=device)
    return bits.bitwise_right_shift(shifts).bitwise_and_(1).bool().flatten(1)[:, :vocab_size]
