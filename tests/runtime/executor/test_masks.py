"""Masks on the device: what each row may say, as of now, and none where nothing is forbidden."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from jit_kernels.mask_logits import mask_logits
from runtime.executor.masks import Masks
from runtime.executor.step_plan import SampleState
from runtime.messages import Sampling

CPU = torch.device("cpu")


@dataclass
class Fixed:
    """A constraint that allows what it is told to."""

    allowed: np.ndarray | None


def packed(allowed: np.ndarray) -> np.ndarray:
    """Return [V] bool as a mask, bits past it unset."""
    padded = np.zeros(-(-len(allowed) // 32) * 32, dtype=bool)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view("<i4")


def state(allowed: np.ndarray | None) -> SampleState:
    sampling = Sampling(max_new_tokens=1, seed=0)
    empty = np.zeros(0, dtype=np.int32)
    return SampleState(sampling, None, empty, (), constraint=Fixed(allowed))


def forbidden(masks: Masks, states: list[SampleState], vocab: int) -> np.ndarray | None:
    """Return [rows of the logits, V] bool: what masks forbid of six rows; None: nothing."""
    told = masks.of(states)
    if told is None:
        return None
    logits = torch.zeros((6, vocab))
    mask_logits(logits, *told)
    return (logits == -torch.inf).numpy()


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 129])
def test_each_row_is_held_to_its_own_mask_as_it_is_now(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    rows = [1, 4, 5]
    masks, states = Masks(rows, vocab, CPU), [state(None) for _ in rows]
    allowed = np.ones((6, vocab), dtype=bool)
    for step in range(6):
        # All at first, then some of them, at last none.
        for k in range(step % 4 if step else 0, 3):
            allowed[rows[k]] = rng.random(vocab) < 0.5
            allowed[rows[k], rng.integers(vocab)] = False
            states[k].constraint = Fixed(packed(allowed[rows[k]]))

        got = forbidden(masks, states, vocab)

        assert got is not None
        assert (got == ~allowed).all()


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 129])
def test_masks_that_forbid_nothing_are_none_and_one_bit_is_seen(vocab: int) -> None:
    masks, every = Masks([0, 3], vocab, CPU), np.ones(vocab, dtype=bool)
    assert masks.of([state(packed(every)), state(None)]) is None

    for token in range(vocab):
        allowed = every.copy()
        allowed[token] = False
        got = forbidden(masks, [state(packed(every)), state(packed(allowed))], vocab)
        assert got is not None
        assert np.argwhere(got).tolist() == [[3, token]]
    assert masks.of([state(packed(every)), state(packed(every))]) is None


def test_a_mask_that_stays_the_same_does_not_travel_again() -> None:
    masks = Masks([0, 1], 64, CPU)
    kept = state(np.full(2, 5, np.int32))
    other = [state(np.full(2, value, np.int32)) for value in (6, 7)]
    first = masks.of([kept, other[0]])
    assert first is not None
    rows, lines = first
    lines[0] = 9  # which would be written over

    again = masks.of([kept, other[1]])

    assert again is not None
    assert again[0] is rows
    assert again[1].tolist() == [[9, 9], [7, 7]]


def test_a_row_without_a_mask_is_held_to_nothing() -> None:
    masks = Masks([2], 40, CPU)
    ruled = state(np.array([1, 0], np.int32))
    assert masks.of([ruled]) is not None
    assert ruled.constraint is not None
    ruled.constraint.allowed = None  # pyright: ignore[reportAttributeAccessIssue]

    assert masks.of([ruled]) is None
