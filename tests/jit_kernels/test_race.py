"""The race of a draw: ids, not places; parts of a vocabulary; bits that are equal anywhere."""

import pytest
import torch

from jit_kernels.sample import host, reference
from jit_kernels.sample.noise import row_keys
from tests.jit_kernels.test_sample import _logits

RACES = [reference.race, host.race]


@pytest.mark.parametrize("race", RACES)
def test_equal_scores_go_to_the_lower_id(race: reference.Race) -> None:
    values = torch.full((5, 600), -torch.inf)
    values[1] = 1e38  # noise is less than a unit of the score
    values[2, 300:] = 1e38
    values[3, [7, 599]] = torch.inf
    values[4] = torch.nan
    keys, ones = row_keys(torch.arange(5), torch.arange(5)), torch.ones(5)
    order = torch.randperm(600, generator=torch.Generator().manual_seed(0))

    assert race(values, None, ones, keys)[0].tolist() == [0, 0, 300, 7, 0]
    shuffled = race(values[:, order], order[None], ones, keys)
    assert shuffled[0].tolist() == [0, 0, 300, 7, 0]


@pytest.mark.parametrize("race", RACES)
@pytest.mark.parametrize("vocab", [2, 129, 5003])
def test_the_winner_of_a_vocabulary_is_the_winner_of_its_shards(
    race: reference.Race, vocab: int
) -> None:
    logits = _logits(40, vocab).round()
    temperature = torch.linspace(0.1, 3.0, 40)
    keys, ids = row_keys(torch.arange(40), torch.arange(40)), torch.arange(vocab)[None]
    tokens, scores = race(logits, None, temperature, keys)
    for first in {1, vocab // 2, vocab - 1}:
        shards = [
            race(logits[:, part], ids[:, part], temperature, keys)
            for part in (slice(0, first), slice(first, vocab))
        ]

        # What they exchange: the larger score wins, of equals the lower id.
        (low, low_score), (high, high_score) = shards
        assert torch.equal(torch.where(high_score > low_score, high, low), tokens)
        assert torch.equal(torch.maximum(high_score, low_score), scores)


@pytest.mark.parametrize("race", RACES)
def test_a_race_knows_ids_and_not_places(race: reference.Race) -> None:
    logits, order = _logits(9, 700), torch.randperm(700, generator=torch.Generator().manual_seed(1))
    temperature, keys = torch.full((9,), 0.7), row_keys(torch.arange(9), torch.arange(9))
    tokens, scores = race(logits, None, temperature, keys)

    shuffled = race(logits[:, order], order[None], temperature, keys)
    fewer = race(logits[3:5, :600].contiguous(), None, temperature[3:5], keys[3:5])

    assert torch.equal(shuffled[0], tokens)
    assert torch.equal(shuffled[1], scores)
    assert torch.equal(fewer[0][tokens[3:5] < 600], tokens[3:5][tokens[3:5] < 600])


@pytest.mark.parametrize("rows", [1, 3, 300])
@pytest.mark.parametrize("vocab", [1, 15, 256, 257, 5003])
def test_the_race_in_c_has_the_bits_of_the_reference(rows: int, vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = _logits(rows, vocab + 3, seed=rows)[:, 1 : vocab + 1]
    temperature = torch.rand(rows, generator=generator) * 2 + 1e-3
    keys = torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator)
    ids = torch.argsort(torch.rand(rows, vocab, generator=generator))

    for some in (None, ids[:1] + 2**40, ids):
        got = host.race(logits, some, temperature, keys)
        want = reference.race(logits, some, temperature, keys)
        assert torch.equal(got[0], want[0])
        assert torch.equal(got[1], want[1])


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [1, 63, 5003, 129_280])
def test_on_the_gpu_a_race_has_the_bits_of_the_cpu(vocab: int) -> None:
    logits, keys = _logits(24, vocab), row_keys(torch.arange(24), torch.arange(24))
    temperature = torch.linspace(0.1, 3.0, 24)

    there = reference.race(logits.cuda(), None, temperature.cuda(), keys.cuda())
    here = host.race(logits, None, temperature, keys)

    assert torch.equal(there[0].cpu(), here[0])
    assert torch.equal(there[1].cpu(), here[1])
