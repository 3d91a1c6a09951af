"""Masks on the device: what each row may say, as of now, and none where nothing is forbidden."""

import numpy as np
import pytest
import torch

from jit_kernels.mask_logits import mask_logits
from runtime.executor.masks import Masks
from tests.testing.plans import mask_words

CPU = torch.device("cpu")


def words(allowed: np.ndarray) -> np.ndarray:
    """Return [V] bool as a mask, bits past it unset."""
    return mask_words(np.flatnonzero(allowed).tolist(), len(allowed))


def forbidden(masks: Masks, told: list[np.ndarray], vocab: int) -> np.ndarray | None:
    """Return [rows of the logits, V] bool: what masks forbid of six rows; None: nothing."""
    given = masks.of(told)
    if given is None:
        return None
    logits = torch.zeros((6, vocab))
    mask_logits(logits, *given)
    return (logits == -torch.inf).numpy()


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 129])
def test_each_row_is_held_to_its_own_mask_as_it_is_now(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    rows = [1, 4, 5]
    masks = Masks(rows, vocab, CPU)
    allowed = np.ones((6, vocab), dtype=bool)
    told = [words(allowed[row]) for row in rows]
    for step in range(6):
        # All at first, then some of them, at last none.
        for k in range(step % 4 if step else 0, 3):
            allowed[rows[k]] = rng.random(vocab) < 0.5
            allowed[rows[k], rng.integers(vocab)] = False
            told[k] = words(allowed[rows[k]])

        got = forbidden(masks, [*told], vocab)

        assert got is not None
        assert (got == ~allowed).all()


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 129])
def test_masks_that_forbid_nothing_are_none_and_one_bit_is_seen(vocab: int) -> None:
    masks, every = Masks([0, 3], vocab, CPU), np.ones(vocab, dtype=bool)
    assert masks.of([words(every), words(every)]) is None

    for token in range(vocab):
        allowed = every.copy()
        allowed[token] = False
        got = forbidden(masks, [words(every), words(allowed)], vocab)
        assert got is not None
        assert np.argwhere(got).tolist() == [[3, token]]
    assert masks.of([words(every), words(every)]) is None


def test_a_mask_that_stays_the_same_does_not_travel_again() -> None:
    masks = Masks([0, 1], 64, CPU)
    kept = np.full(2, 5, np.int32)
    other = [np.full(2, value, np.int32) for value in (6, 7)]
    first = masks.of([kept, other[0]])
    assert first is not None
    rows, lines = first
    lines[0] = 9  # which would be written over

    again = masks.of([kept, other[1]])

    assert again is not None
    assert again[0] is rows
    assert again[1].tolist() == [[9, 9], [7, 7]]


def test_a_row_whose_new_mask_forbids_nothing_is_held_to_nothing() -> None:
    masks = Masks([2], 40, CPU)
    assert masks.of([np.array([1, 0], np.int32)]) is not None

    assert masks.of([np.full(2, -1, np.int32)]) is None
