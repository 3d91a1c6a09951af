"""Packed masks as tensors: each bit where its token is, whatever the width."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from runtime.executor.masks import forbidden_tokens, unpack_masks
from runtime.executor.step_plan import SampleState
from runtime.messages import Sampling


@dataclass
class Fixed:
    """A constraint that always allows the same."""

    allowed: np.ndarray | None
    begun: bool = True


def state(allowed: np.ndarray | None) -> SampleState:
    sampling = Sampling(max_new_tokens=1, seed=0)
    empty = np.zeros(0, dtype=np.int32)
    return SampleState(sampling, None, empty, (), constraint=Fixed(allowed))


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 129])
def test_every_bit_is_its_token(vocab: int) -> None:
    wanted = np.random.default_rng(vocab).random((3, vocab)) < 0.4
    padded = np.zeros((3, -(-vocab // 32) * 32), dtype=bool)
    padded[:, :vocab] = wanted
    packed = np.packbits(padded, axis=1, bitorder="little").view("<i4")

    got = unpack_masks([state(row) for row in packed], vocab, torch.device("cpu"))

    assert got.dtype == torch.bool
    assert (got.numpy() == wanted).all()


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 129])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.6, 1.0])
def test_what_is_not_allowed_is_forbidden_within_the_vocabulary(vocab: int, share: float) -> None:
    wanted = np.random.default_rng(vocab).random(vocab) < share
    bits = np.zeros(-(-vocab // 32) * 32, dtype=bool)
    bits[:vocab] = ~wanted

    got = forbidden_tokens(state(np.packbits(bits, bitorder="little").view("<i4")), vocab)

    assert got.dtype == np.int64
    assert got.tolist() == np.flatnonzero(wanted).tolist()


def test_a_mask_that_is_not_known_is_a_fault() -> None:
    with pytest.raises(AssertionError, match="sampled before"):
        unpack_masks([state(None)], 8, torch.device("cpu"))
    with pytest.raises(AssertionError, match="sampled before"):
        forbidden_tokens(state(None), 8)
