"""Packed token masks of grammars as tensors."""

import numpy as np
import torch

from layers.staging import stage
from runtime.executor.step_plan import SampleState

_WORD_BITS = 32


def forbidden_tokens(state: SampleState, vocab_size: int) -> np.ndarray:
    """Return the ids [f] int64 that a state's constraint leaves out; its mask must be known.

    Only words that are not all ones are looked into: of an output that is free there are few.
    """
    allowed = _known(state)
    words = np.flatnonzero(allowed != -1)
    bits = np.unpackbits(allowed[words].view(np.uint8), bitorder="little")
    ids = (words[:, None] * _WORD_BITS + np.arange(_WORD_BITS)).reshape(-1)[bits == 0]
    return ids[ids < vocab_size]


def unpack_masks(states: list[SampleState], vocab_size: int, device: torch.device) -> torch.Tensor:
    """Return [s, V] bool, what each state's constraint allows; the masks must be known.

    They travel packed, a bit a token, and are unpacked on the device.
    """
    words = -(-vocab_size // _WORD_BITS)
    packed = np.zeros((len(states), words), dtype=np.int32)
    for row, state in enumerate(states):
        packed[row] = _known(state)
    bits = stage(packed, device).unsqueeze(-1)
    shifts = torch.arange(_WORD_BITS, dtype=torch.int32, device=device)
    return bits.bitwise_right_shift(shifts).bitwise_and_(1).bool().flatten(1)[:, :vocab_size]


def _known(state: SampleState) -> np.ndarray:
    allowed = None if state.constraint is None else state.constraint.allowed
    assert allowed is not None, "sampled before its grammar said what may come next"
    return allowed
