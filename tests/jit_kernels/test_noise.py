"""The noise of a draw: its bits, its distribution, and what it depends on."""

import math

import pytest
import torch

from jit_kernels.sample.noise import gumbel, row_keys
from tests.testing.noise_keys import keys_with, splitmix64

_ALL = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
SEEDS = torch.tensor([0, 1, -1, 42, 2**63 - 1, -(2**63), 123456789])
POSITIONS = torch.tensor([0, 1, 2, 4096, 2**20, 2**40, 7])


def _noise(bits: int) -> float:
    """The noise of 64 bits, by the definition."""
    w = (bits >> 32 & 0x7FFFFFFF) / 2**32 + (bits & 0x7FFFFFFF | 1) / 2**63
    return -math.log(-math.log(w) if bits >> 63 else -math.log1p(-w))


def _flat(seeds: torch.Tensor, positions: torch.Tensor, tokens: int) -> torch.Tensor:
    """Noise as numbers that are even in (0, 1), [rows, tokens] float64."""
    noise = gumbel(row_keys(seeds, positions), torch.arange(tokens)[None])
    return noise.double().neg().exp().neg().exp()


def test_the_python_splitmix64_of_these_tests_gives_the_published_first_numbers() -> None:
    numbers = [splitmix64((1234567 + i * _STEP) & _ALL) for i in range(3)]

    assert numbers == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_a_key_is_splitmix64_over_seed_then_position() -> None:
    keys = row_keys(SEEDS, POSITIONS)

    pairs = zip(SEEDS.tolist(), POSITIONS.tolist(), strict=True)
    for key, (seed, position) in zip(keys.tolist(), pairs, strict=True):
        start = splitmix64(seed & _ALL) + position * _STEP - _STEP
        assert key & _ALL == splitmix64(start & _ALL)


def test_the_noise_of_a_token_is_the_output_of_its_number_within_the_stated_error() -> None:
    keys = row_keys(SEEDS, POSITIONS)
    ids = torch.tensor([[0, 1, 2, 77, 129_279, 2**18 - 1, 2**40]])

    got = gumbel(keys, ids)

    assert got.dtype == torch.float32
    for key, row in zip(keys.tolist(), got.tolist(), strict=True):
        for token, noise in zip(ids[0].tolist(), row, strict=True):
            want = _noise(splitmix64((key + token * _STEP) & _ALL))
            assert abs(noise - want) < 3e-7 * max(1.0, abs(want))


@pytest.mark.parametrize("late", [0, 1 << 63])
def test_noise_keeps_its_precision_from_the_least_to_the_most_likely(late: int) -> None:
    words = [0, 1, 2, 3, 1 << 20, (1 << 31) - 1, 1 << 32, 3 << 32, 1 << 45, 1 << 62, (1 << 63) - 1]
    words += [(1 << 63) - 1 - (1 << shift) for shift in range(33, 62)]
    words += [(1 << shift) * 181 // 128 for shift in range(8, 62)]  # beside roots of 1/2

    for word in words:
        noise = gumbel(keys_with(late | word, torch.tensor([5])), torch.tensor([[5]])).item()

        want = _noise(late | word)
        assert abs(noise - want) < 3e-7 * max(1.0, abs(want)), hex(late | word)


def test_noise_is_even_over_seeds_over_positions_and_over_tokens() -> None:
    many, one = torch.arange(40_000), torch.tensor([5])
    for numbers in (
        _flat(many, one.expand(40_000), 3)[:, 2],
        _flat(one.expand(40_000), many, 3)[:, 2],
        _flat(one, one, 40_000)[0],
    ):
        cells = torch.bincount((numbers * 100).long(), minlength=100).double()
        assert abs(((cells - 400) ** 2 / 400).sum() - 99) < 5 * math.sqrt(2 * 99)
        for lag in (1, 2, 64):
            pairs = torch.stack((numbers[:-lag], numbers[lag:]))
            assert abs(torch.corrcoef(pairs)[0, 1]) < 5 / math.sqrt(40_000)


def test_rows_of_neighbouring_seeds_and_positions_share_nothing() -> None:
    seeds = torch.tensor([7, 7, 8, 8])
    numbers = _flat(seeds, torch.tensor([100, 101, 100, 101]), 40_000)

    correlations = torch.corrcoef(numbers) - torch.eye(4)
    assert correlations.abs().max() < 5 / math.sqrt(40_000)


def test_noise_depends_on_seed_position_and_token_alone() -> None:
    keys = row_keys(SEEDS, POSITIONS)
    whole = gumbel(keys, torch.arange(1000)[None])
    order = torch.randperm(1000)

    assert torch.equal(gumbel(keys, order[None]), whole[:, order])
    assert torch.equal(gumbel(keys[3:4], order[None, :7]), whole[3:4, order[:7]])
    assert torch.equal(gumbel(keys, order.expand(7, 1000)), whole[:, order])
    assert torch.equal(gumbel(keys.flip(0), torch.arange(1000)[None]), whole.flip(0))


@pytest.mark.gpu
def test_on_the_gpu_noise_has_the_bits_of_the_cpu() -> None:
    keys, ids = row_keys(SEEDS, POSITIONS), torch.arange(2**18)[None]

    assert torch.equal(gumbel(keys.cuda(), ids.cuda()).cpu(), gumbel(keys, ids))
