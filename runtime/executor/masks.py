"""Packed token masks of grammars as tensors."""

import numpy as np
import torch

from layers.staging import stage
from runtime.executor.step_plan import SampleState

_WORD_BITS = 32


def forbids(state: SampleState, vocab_size: int) -> bool:
    """Say whether a state's constraint, whose mask must be known, leaves out any token."""
    allowed = None if state.constraint is None else state.constraint.allowed
    assert allowed is not None, "sampled before its grammar said what may come next"
    words, rest = divmod(vocab_size, _WORD_BITS)
    last = (1 << rest) - 1
    whole = (allowed[:words] == -1).all() and (not rest or int(allowed[words]) & last == last)
    return not whole


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
    bits = stage(packed, device).unsqueeze(-1)
    shifts = torch.arange(_WORD_BITS, dtype=torch.int32, device=device)
    return bits.bitwise_right_shift(shifts).bitwise_and_(1).bool().flatten(1)[:, :vocab_size]
