"""The sample op against slow formulas, and its independence of company."""

from typing import Any

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.sample import MAX_VOCAB, host, reference, sample
from tests.testing.noise_keys import favouring

VOCABS = [1, 63, 129, 512]


def _logits(rows: int, vocab: int, *, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocab, generator=generator) * spread


def _params(rows: int, vocab: int, **given: Any) -> dict[str, torch.Tensor]:
    """Parameters of `rows` rows: numbers are spread over the rows, lists go row by row."""
    settings: dict[str, tuple[Any, torch.dtype]] = {
        "temperature": (1.0, torch.float32),
        "top_k": (vocab, torch.int64),
        "top_p": (1.0, torch.float32),
        "min_p": (0.0, torch.float32),
        "seed": (1, torch.int64),
        "position": (list(range(rows)), torch.int64),
    }
    return {
        name: torch.as_tensor(given.get(name, default), dtype=dtype).expand(rows).clone()
        for name, (default, dtype) in settings.items()
    }


def _counts(logits: torch.Tensor, draws: int, **given: float) -> dict[int, int]:
    """Draw `draws` times from one row of logits, at positions 0, 1, ..."""
    vocab = logits.numel()
    tokens = sample(logits.expand(draws, vocab), **_params(draws, vocab, **given))
    ids, numbers = tokens.unique(return_counts=True)
    return dict(zip(ids.tolist(), numbers.tolist(), strict=True))


@pytest.mark.parametrize("vocab", VOCABS)
def test_temperature_zero_takes_the_largest_logit_and_the_lower_id_of_equals(vocab: int) -> None:
    logits = _logits(9, vocab)
    logits[3] = 1.5
    logits[4, vocab // 2 :] = 99.0
    logits[5, -1] = 99.0

    tokens = sample(logits, **_params(9, vocab, temperature=0.0, top_k=1, top_p=0.1))

    wanted = [max(range(vocab), key=lambda t: (row[t].item(), -t)) for row in logits]
    assert tokens.dtype == torch.int64
    assert tokens.tolist() == wanted
    assert (tokens[3], tokens[4], tokens[5]) == (0, vocab // 2, vocab - 1)


def test_large_logits_over_a_small_temperature_lose_none_of_the_noise() -> None:
    zeros, params = torch.zeros(300, 129), _params(300, 129, temperature=1e-3)

    tokens = sample(zeros, **params)

    assert torch.equal(sample(zeros + 1e4, **params), tokens)
    assert torch.equal(sample(zeros - 1e4, **params), tokens)


def test_a_filter_of_equal_logits_keeps_the_lower_ids() -> None:
    row = torch.zeros(129)
    row[5] = -1.0

    assert _counts(row, 500, top_k=6).keys() == {0, 1, 2, 3, 4, 6}
    assert _counts(row, 500, top_k=1).keys() == {0}
    assert _counts(row, 500, top_p=0.0).keys() == {0}


def test_the_first_token_is_kept_whatever_the_filters_say() -> None:
    row = _logits(1, 129)[0]

    assert _counts(row, 200, min_p=2.0).keys() == {int(row.argmax())}
    assert _counts(row, 200, top_k=0).keys() == {int(row.argmax())}


def test_top_p_counts_mass_before_top_k_took_any_away() -> None:
    # A token of mass 0.4 survives top_p 0.5 only if the mass before it is taken of everything:
    # of the two that top_k leaves, the first alone would be past the half.
    row = torch.tensor([0.45, 0.4, 0.15]).log()

    assert _counts(row, 400, top_k=2, top_p=0.5).keys() == {0, 1}


def test_minus_infinity_is_never_drawn_and_one_finite_token_always_is() -> None:
    logits = torch.full((300, 63), -torch.inf)
    logits[:, 17] = -5.0
    plain = sample(logits, **_params(300, 63))
    filtered = sample(logits, **_params(300, 63, top_p=0.5, top_k=40))
    logits[:, 3] = -5.0
    both = sample(logits, **_params(300, 63, temperature=1e6))

    assert set(plain.tolist()) == set(filtered.tolist()) == {17}
    assert set(both.tolist()) == {3, 17}


@pytest.mark.parametrize("temperature", [1e-6, 1e-4, 1e30])
def test_extreme_temperatures_stay_in_range(temperature: float) -> None:
    logits = _logits(200, 129)

    tokens = sample(logits, **_params(200, 129, temperature=temperature))

    assert tokens.min() >= 0
    assert tokens.max() < 129
    assert (tokens == logits.argmax(-1)).all() == (temperature < 1)


def _mixed_rows(rows: int, vocab: int) -> dict[str, torch.Tensor]:
    """Parameters of every kind, so that each path of the op has some of the rows."""
    draw = torch.Generator().manual_seed(rows * vocab)
    kind = torch.arange(rows) % 6
    return _params(
        rows,
        vocab,
        temperature=torch.where(kind == 0, 0.0, torch.rand(rows, generator=draw) * 2 + 0.1),
        top_k=torch.where((kind == 2) | (kind == 5), 1 + vocab // 3, vocab),
        top_p=torch.where((kind == 3) | (kind == 5), 0.9, 1.0),
        min_p=torch.where((kind == 4) | (kind == 5), 0.02, 0.0),
        seed=torch.randint(-(2**62), 2**62, (rows,), generator=draw),
        position=torch.randint(0, 2**20, (rows,), generator=draw),
    )


@pytest.mark.parametrize("vocab", [*VOCABS, 5003])
def test_a_row_draws_the_same_alone_and_in_any_company(vocab: int) -> None:
    logits = _logits(24, vocab, spread=1.0)
    params = _mixed_rows(24, vocab)
    together = sample(logits, **params)

    def draw(rows: list[int]) -> torch.Tensor:
        return sample(logits[rows], **{name: value[rows] for name, value in params.items()})

    alone = torch.cat([draw([row]) for row in range(24)])
    backwards = list(range(23, -1, -1))
    some = [7, 3, 3, 23, 11]

    assert torch.equal(alone, together)
    assert torch.equal(draw(backwards), together[backwards])
    assert torch.equal(draw(some), together[some])


@pytest.mark.parametrize("vocab", [63, 129, 5003])
def test_weights_have_the_same_bits_in_any_company(vocab: int) -> None:
    logits = _logits(17, vocab)
    temperature = torch.linspace(0.1, 2.0, 17)
    together = reference.token_weights(logits, temperature)

    for row in range(17):
        alone = reference.token_weights(logits[row : row + 1], temperature[row : row + 1])
        assert torch.equal(alone[0], together[row])
    assert torch.equal(together, together.round())
    assert (together.amax(-1) == reference.SCALE).all()


def test_a_row_of_nans_changes_no_other_row() -> None:
    logits = _logits(12, 129)
    params = _mixed_rows(12, 129)
    clean = sample(logits, **params)
    for value in (torch.nan, torch.inf, -torch.inf):
        for bad in range(12):
            poisoned = logits.clone()
            poisoned[bad] = value
            tokens = sample(poisoned, **params)

            others = torch.arange(12) != bad
            assert torch.equal(tokens[others], clean[others])
            assert 0 <= tokens[bad] < 129


def test_the_draw_depends_on_seed_and_on_position_and_repeats() -> None:
    logits = torch.zeros(50, 512)
    first = sample(logits, **_params(50, 512, seed=1))

    assert torch.equal(first, sample(logits, **_params(50, 512, seed=1)))
    assert (first != sample(logits, **_params(50, 512, seed=2))).sum() > 40
    assert first.unique().numel() > 40


@pytest.mark.parametrize("vocab", [*VOCABS, 5003])
def test_the_host_draws_the_tokens_of_the_reference(vocab: int) -> None:
    logits = _logits(60, vocab, spread=1.0)
    logits[::2] = logits[::2].round()
    logits[7, : vocab // 2] = -torch.inf
    params = _mixed_rows(60, vocab)

    assert torch.equal(host.sample(logits, **params), reference.sample(logits, **params))


@pytest.mark.parametrize("kept", [1, 5, 90, 511])
def test_the_last_token_that_top_k_keeps_can_win_and_the_next_one_cannot(kept: int) -> None:
    logits = _logits(30, 512).round()
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    params = _params(30, 512, top_k=kept)
    filters = {name: params[name] for name in ("top_k", "top_p", "min_p")}

    def draw(favoured: torch.Tensor) -> torch.Tensor:
        return reference.draw(
            host.race, logits, params["temperature"], filters, favouring(favoured)
        )

    assert torch.equal(draw(order[:, kept - 1]), order[:, kept - 1])
    assert (draw(order[:, kept]) != order[:, kept]).all()


def test_candidates_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = (_logits(60, 512) * 2).round()  # many equal logits, at the last candidate too
    params = _mixed_rows(60, 512)
    params["top_k"].clamp_max_(90)
    whole = sample(logits, **params)
    for candidates in (1, 2, 8, 33, 511):
        monkeypatch.setattr(reference, "CANDIDATES", candidates)

        assert torch.equal(sample(logits, **params), whole)


def test_equal_logits_among_the_candidates_are_kept_by_lower_id() -> None:
    logits = _logits(40, 5003, spread=0.8).mul_(2).round_()
    params = _params(40, 5003, top_k=[3 + 5 * row for row in range(40)])

    tokens = sample(logits, **params)

    for row in range(40):
        order = logits[row].sort(descending=True, stable=True).indices
        assert tokens[row] in order[: 3 + 5 * row]


def test_candidates_are_enough_for_a_peaked_row_and_not_for_a_flat_one() -> None:
    logits = torch.stack((torch.linspace(90, 0, 2000), torch.zeros(2000)))
    weights = reference.token_weights(logits, torch.ones(2))
    mass = 0.9 * weights.sum(-1, dtype=torch.float64)

    values, ids, covered = reference._filter_best(
        logits,
        weights,
        width=100,
        top_k=torch.full((2,), 2000),
        mass=mass,
        least=torch.zeros(2, dtype=torch.float64),
    )

    assert covered.tolist() == [True, False]
    assert values.isfinite().any(-1).all()
    assert ids[0].tolist() == list(range(100))


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [*VOCABS, 5003])
def test_on_the_gpu_a_row_draws_the_same_alone_and_in_company(vocab: int) -> None:
    logits = _logits(24, vocab).cuda()
    params = _mixed_rows(24, vocab)
    together = sample(logits, **params)

    for row in range(24):
        own = {name: value[row : row + 1] for name, value in params.items()}
        assert torch.equal(sample(logits[row : row + 1].clone(), **own)[0], together[row])


def test_the_logits_are_left_as_they_were() -> None:
    logits = _logits(12, 129)
    before = logits.clone()

    sample(logits, **_mixed_rows(12, 129))

    assert torch.equal(logits, before)


def test_the_largest_vocabulary_is_summed_exactly() -> None:
    # Of equal logits top-p keeps the lower ids up to the one that passes the mass.
    kept = torch.tensor([1, 2, MAX_VOCAB // 2, MAX_VOCAB - 1])
    params = _params(4, MAX_VOCAB, top_p=(kept - 1) / MAX_VOCAB)
    filters = {name: params[name] for name in ("top_k", "top_p", "min_p")}

    def draw(favoured: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros(4, MAX_VOCAB)
        return reference.draw(host.race, zeros, params["temperature"], filters, favouring(favoured))

    assert torch.equal(draw(kept - 1), kept - 1)
    assert (draw(kept) < kept).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logits", torch.zeros(2, 63, dtype=torch.float64)),
        ("logits", torch.zeros(63)),
        ("logits", torch.zeros(2, 0)),
        ("logits", torch.zeros(2, MAX_VOCAB + 1)),
        ("temperature", torch.ones(3)),
        ("top_k", torch.ones(2)),
        ("seed", torch.zeros(2, 1, dtype=torch.int64)),
    ],
)
def test_wrong_shapes_and_dtypes_are_refused_by_name(name: str, value: torch.Tensor) -> None:
    arguments = {"logits": torch.zeros(2, 63), **_params(2, 63), name: value}

    with pytest.raises(ShapeError, match=name):
        sample(**arguments)
