"""Log-probabilities against torch's log_softmax in float64, ties, tiles, company."""

import numpy as np
import pytest
import torch

from runtime.executor.logprobs import top_logprobs
from runtime.messages import TokenLogprobs
from runtime.packed_logprobs import unpack_logprobs
from runtime.wire.arrays import FLOAT32, unpacked

VOCABS = [1, 63, 129, 512]


def _logits(rows: int, vocab: int, *, spread: float = 4.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows + vocab)
    return torch.randn(rows, vocab, generator=generator) * spread


def _told(
    logits: torch.Tensor, targets: np.ndarray, top: int, asked: tuple[int, ...]
) -> TokenLogprobs:
    """Return what clients are told."""
    return unpack_logprobs(top_logprobs(logits, targets, top, asked), asked)


def _targets(rows: int, vocab: int) -> np.ndarray:
    return (np.arange(rows, dtype=np.int32) * 7) % vocab


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0])
def test_values_are_the_log_softmax(vocab: int, spread: float) -> None:
    logits = _logits(11, vocab, spread=spread)
    targets = _targets(11, vocab)
    asked = tuple({0, vocab // 2, vocab - 1})

    got = _told(logits, targets, 5, asked)

    exact = logits.double().log_softmax(-1)
    rows = torch.arange(11)
    assert got.ids == targets.tolist()
    wanted = exact[rows, torch.from_numpy(targets).long()]
    torch.testing.assert_close(torch.tensor(got.values).double(), wanted, atol=3e-6, rtol=2e-7)
    for row in range(11):
        assert [token for _, token in got.picked[row]] == list(asked)
        for value, token in got.picked[row] + got.top[row]:
            assert value == pytest.approx(exact[row, token].item(), abs=3e-6, rel=2e-7)


@pytest.mark.parametrize("vocab", VOCABS)
def test_top_tokens_come_best_first_and_ties_by_lower_id(vocab: int) -> None:
    logits = _logits(9, vocab).round()  # many equal logits, and both zeros
    logits[0] = 0.0
    logits[1, ::2] = -0.0
    logits[1, 1::2] = 0.0
    logits[2] -= 100.0

    got = _told(logits, _targets(9, vocab), 20, ())

    for row in range(9):
        order = sorted(range(vocab), key=lambda token: (-logits[row, token].item(), token))
        assert [token for _, token in got.top[row]] == order[:20]
    assert got.picked == []


def test_nothing_but_values_is_reported_unless_asked() -> None:
    got = _told(_logits(3, 63), _targets(3, 63), 0, ())

    assert (len(got.values), got.top, got.picked) == (3, [], [])
    assert _told(_logits(0, 63), _targets(0, 63), 4, (1,)) == TokenLogprobs([], [])


def test_top_one_is_the_token_that_greedy_sampling_takes() -> None:
    logits = _logits(40, 129).round()

    got = _told(logits, logits.argmax(-1).numpy(), 1, ())

    assert [pairs[0] for pairs in got.top] == list(zip(got.values, got.ids, strict=True))


@pytest.mark.parametrize("vocab", [*VOCABS, 5003])
def test_a_row_has_the_same_bits_alone_in_company_and_in_any_tiles(
    vocab: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = _logits(13, vocab)
    targets = _targets(13, vocab)
    asked = (vocab - 1, 0)

    together = _told(logits, targets, 3, asked)
    monkeypatch.setattr("runtime.executor.logprobs._TILE_ELEMENTS", 4 * vocab)
    tiled = _told(logits, targets, 3, asked)

    assert tiled == together
    for row in range(13):
        alone = _told(logits[row : row + 1], targets[row : row + 1], 3, asked)
        assert alone.values == together.values[row : row + 1]
        assert alone.top == together.top[row : row + 1]
        assert alone.picked == together.picked[row : row + 1]


def test_a_row_that_is_not_finite_has_no_values_and_spoils_no_other() -> None:
    logits = _logits(6, 129)
    clean = _told(logits, _targets(6, 129), 2, (5,))
    poisoned = logits.clone()
    poisoned[1, 7] = torch.nan
    poisoned[3, 128] = torch.inf
    poisoned[4, 0] = -torch.inf

    got = _told(poisoned, _targets(6, 129), 2, (5,))

    for row in range(6):
        fit = row not in (1, 3, 4)
        assert got.values[row] == (clean.values[row] if fit else None)
        assert got.top[row] == (clean.top[row] if fit else [])
        assert got.picked[row] == (clean.picked[row] if fit else [])


def test_a_message_has_few_bytes_and_says_at_once_what_is_not_finite() -> None:
    logits = _logits(3, 63)
    logits[1, 7] = torch.nan

    got = top_logprobs(logits, _targets(3, 63), 70, (5, 6))

    assert got.top == 63
    assert (len(got.ids), len(got.values), len(got.best)) == (12, 4 * 3 * 66, 4 * 3 * 63)
    values = unpacked(got.values, FLOAT32, 3, -1)
    assert np.isnan(values).all(axis=1).tolist() == [False, True, False]
    assert np.isfinite(values[[0, 2]]).all()


def test_the_logits_are_left_as_they_were() -> None:
    logits = _logits(4, 63)
    before = logits.clone()

    top_logprobs(logits, _targets(4, 63), 3, (1, 2))

    assert torch.equal(logits, before)
