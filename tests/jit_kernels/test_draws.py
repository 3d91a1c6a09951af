"""Tokens are drawn as often as the softmax over what the filters keep says."""

import math

import pytest
import torch

from jit_kernels.sample import sample
from tests.jit_kernels.test_sample import VOCABS, _counts, _logits, _params

DRAWS, FILTERED_DRAWS = 10_000, 4000
SEEDS = (3, 77, -(2**40))
# Of some 200 comparisons of these tests one in ten thousand would be worse.
LEAST_CHANCE = 5e-7


def _probabilities(logits: torch.Tensor, temperature: float) -> list[float]:
    """Softmax of one row in Python floats."""
    values = [value / temperature for value in logits.tolist()]
    largest = max(values)
    masses = [math.exp(value - largest) for value in values]
    return [mass / sum(masses) for mass in masses]


def _kept_slowly(
    logits: torch.Tensor, *, temperature: float, top_k: int, top_p: float, min_p: float
) -> dict[int, float]:
    """Return kept token -> probability among the kept, by the definition, one token at a time."""
    chances = _probabilities(logits, temperature)
    order = sorted(range(len(chances)), key=lambda token: (-logits[token].item(), token))
    kept: dict[int, float] = {}
    before = 0.0
    for rank, token in enumerate(order):
        enough = chances[token] >= min_p * chances[order[0]]
        if rank == 0 or (rank < top_k and before <= top_p and enough):
            kept[token] = chances[token]
        before += chances[token]
    whole = sum(kept.values())
    return {token: chance / whole for token, chance in kept.items()}


def _chance(counts: dict[int, int], expected: dict[int, float]) -> float:
    """Return how likely counts are so far from the expected; tokens expected < 5 times lumped."""
    draws = sum(counts.values())
    rare = {token for token, chance in expected.items() if chance * draws < 5}
    groups = [(counts.get(token, 0), expected[token]) for token in expected.keys() - rare]
    if rare:
        groups.append((sum(counts.get(t, 0) for t in rare), sum(expected[t] for t in rare)))
    groups = [(seen, chance * draws) for seen, chance in groups if chance * draws > 1]
    value = sum((seen - wanted) ** 2 / wanted for seen, wanted in groups)
    halves = torch.tensor([max(1, len(groups) - 1), value], dtype=torch.float64) / 2
    return torch.special.gammaincc(halves[0], halves[1]).item()


def test_the_chance_of_counts_is_that_of_chi_square() -> None:
    expected = dict.fromkeys(range(4), 0.25)

    # Three degrees of freedom, chi-square 20 and 7.24, as tables have it.
    assert abs(_chance({0: 250, 1: 250, 2: 200, 3: 300}, expected) - 1.7e-4) < 1e-6
    assert abs(_chance({0: 278, 1: 239, 2: 222, 3: 261}, expected) - 0.0646) < 1e-4
    assert _chance({0: 250, 1: 250, 2: 250, 3: 250}, expected) == 1.0


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_plain_draws_follow_the_softmax(vocab: int, temperature: float) -> None:
    row = _logits(1, vocab, seed=vocab, spread=1.0)[0]

    expected = dict(enumerate(_probabilities(row, temperature)))
    for seed in SEEDS:
        counts = _counts(row, DRAWS, temperature=temperature, seed=seed)

        assert _chance(counts, expected) > LEAST_CHANCE


def test_rare_tokens_are_drawn_as_often_as_their_mass_says() -> None:
    # Each of 4,096 has a chance of 6e-6, all of them 0.025.
    row = torch.full((4097,), -12.0)
    row[2000] = 0.0
    probabilities = _probabilities(row, 1.0)
    expected = {token: probabilities[token] for token in range(4097)}
    for seed in SEEDS:
        counts = _counts(row, DRAWS, seed=seed)

        rare = [token for token in counts if token != 2000]
        assert 200 < sum(counts[token] for token in rare) < 305
        assert abs(sum(rare) / len(rare) - 2048) < 5 * 1182 / math.sqrt(len(rare))
        assert _chance(counts, expected) > LEAST_CHANCE


def test_draws_of_neighbouring_positions_are_independent() -> None:
    tokens = sample(torch.zeros(DRAWS + 1, 8), **_params(DRAWS + 1, 8))

    pairs = (tokens[:-1] * 8 + tokens[1:]).bincount(minlength=64).tolist()
    assert _chance(dict(enumerate(pairs)), dict.fromkeys(range(64), 1 / 64)) > LEAST_CHANCE


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize(
    "filters",
    [
        {"top_k": 1},
        {"top_k": 7},
        {"top_p": 0.1},
        {"top_p": 0.83},
        {"min_p": 0.2},
        {"min_p": 1.0},
        {"top_k": 20, "top_p": 0.7},
        {"top_k": 30, "top_p": 0.95, "min_p": 0.05},
        {"top_k": 5, "top_p": 0.9999, "min_p": 0.01},
    ],
    ids=str,
)
def test_filtered_draws_follow_the_kept_tokens(vocab: int, filters: dict[str, float]) -> None:
    row = _logits(1, vocab, seed=vocab + 1, spread=1.5)[0]
    settings = {"temperature": 0.8, "top_k": vocab, "top_p": 1.0, "min_p": 0.0, **filters}

    kept = _kept_slowly(
        row,
        temperature=0.8,
        top_k=int(settings["top_k"]),
        top_p=settings["top_p"],
        min_p=settings["min_p"],
    )
    for seed in SEEDS:
        counts = _counts(row, FILTERED_DRAWS, seed=seed, **settings)

        assert counts.keys() <= kept.keys()
        assert all(
            token in counts for token, chance in kept.items() if chance * FILTERED_DRAWS > 25
        )
        assert _chance(counts, kept) > LEAST_CHANCE
