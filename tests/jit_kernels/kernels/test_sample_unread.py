"""Drawing without a sort, on the device: the very tokens of the reference."""

from collections.abc import Sequence

import pytest
import torch

from jit_kernels.sample import DrawParams, cuda_backend, reference
from tests.testing.compare import assert_same_bits

pytestmark = pytest.mark.gpu

ROWS = 12
VOCABS = [1, 97, 1000, 4097, 129_280, 131_073, 2**18]
TILED = [2, 97, 4097, 129_280]
# One filter a row, or several; the rows take them in turn.
TOP_K = [0, 1, 2, 7, 50, 10**9]
TOP_P = [-1.0, 0.0, 1e-7, 0.3, 0.9, 0.999999, 1.0, 2.0]
MIN_P = [0.0, 1e-6, 0.05, 0.7, 1.0, 1.5]


def _draws(rows: int, **given: Sequence[float]) -> tuple[DrawParams, torch.Tensor]:
    """Return parameters that go around the given lists, without any filter by default."""
    settings = {
        "temperature": ([1.0], torch.float32),
        "top_k": ([10**9], torch.int64),
        "top_p": ([1.0], torch.float32),
        "min_p": ([0.0], torch.float32),
    }
    parts = {
        name: torch.tensor([*given.get(name, plain)] * rows, dtype=dtype)[:rows]
        for name, (plain, dtype) in settings.items()
    }
    params = DrawParams(**parts, draws=True, filters=not given.keys() <= {"temperature"})
    return params, torch.rand(rows, dtype=torch.float64)


def _assert_equals_reference(
    logits: torch.Tensor, draws: tuple[DrawParams, torch.Tensor]
) -> torch.Tensor:
    before = logits.clone()

    got = cuda_backend.sample_unread(logits, *draws)

    assert_same_bits(got, reference.sample_unread(before, *draws), what="tokens")
    assert_same_bits(logits, before, what="logits")
    return got


@pytest.mark.parametrize("vocab", VOCABS)
def test_rows_without_filters_draw_the_token_of_the_reference(vocab: int) -> None:
    draws = _draws(ROWS, temperature=[1.0, 0.0, 0.3, 5.0])

    _assert_equals_reference(torch.randn(ROWS, vocab) * 3, draws)


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize(
    "filters",
    [{"top_k": TOP_K}, {"top_p": TOP_P}, {"min_p": MIN_P}, {"top_p": [0.5], "top_k": [1.0]}],
    ids=str,
)
def test_each_filter_keeps_what_the_reference_keeps(
    vocab: int, filters: dict[str, Sequence[float]]
) -> None:
    _assert_equals_reference(torch.randn(ROWS, vocab) * 3, _draws(ROWS, **filters))


@pytest.mark.parametrize("vocab", TILED)
@pytest.mark.parametrize("steps", [0.5, 16.0])
def test_mixed_rows_with_many_equal_logits_keep_the_lower_ids(vocab: int, steps: float) -> None:
    # Few values, both zeros among them.
    logits = (torch.randn(21, vocab) * steps).round() / steps
    draws = _draws(
        21,
        temperature=[1.0, 0.7, 0.0, 1.3, 1e-3],
        top_k=[*TOP_K, vocab, vocab - 1, vocab // 2],
        top_p=TOP_P,
        min_p=[*MIN_P[:4], 0.0, 0.0, 0.0],
    )

    _assert_equals_reference(logits, draws)


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("value", [-0.0, -torch.finfo(torch.float32).max])
def test_equal_logits_are_kept_up_to_the_exact_number(vocab: int, value: float) -> None:
    chances = [0.0, 0.5, 1.0 - 2.0**-53]
    draws = _draws(
        ROWS, top_k=[vocab, 1.0, 2.0, vocab - 1, vocab // 3 + 1], top_p=[1.0, 0.25, 0.5, 0.0]
    )
    draws[1].copy_(torch.tensor((chances * ROWS)[:ROWS], dtype=torch.float64))

    _assert_equals_reference(torch.full((ROWS, vocab), value), draws)


@pytest.mark.parametrize("vocab", VOCABS)
def test_one_token_alone_is_always_drawn(vocab: int) -> None:
    logits = torch.full((ROWS, vocab), -torch.inf)
    wanted = torch.randint(vocab, (ROWS,))
    logits[torch.arange(ROWS), wanted] = torch.randn(ROWS) * 1e3

    for filters in ({}, {"top_k": TOP_K, "top_p": TOP_P}, {"min_p": MIN_P}):
        assert_same_bits(_assert_equals_reference(logits, _draws(ROWS, **filters)), wanted)


@pytest.mark.parametrize("vocab", [97, 1000])
def test_infinite_logits_below_the_largest_are_never_drawn(vocab: int) -> None:
    logits = torch.randn(ROWS, vocab).masked_fill(torch.rand(ROWS, vocab) < 0.9, -torch.inf)
    logits[:, vocab // 2] = 0.0

    for filters in ({}, {"top_k": [5.0, 50.0], "top_p": TOP_P}, {"top_p": [0.99, 1.0]}):
        tokens = _assert_equals_reference(logits, _draws(ROWS, **filters))

        assert logits.gather(1, tokens[:, None]).isfinite().all()


def test_limits_that_are_met_exactly_keep_the_token_they_meet() -> None:
    # So hot that distinct logits weigh the same: all masses are multiples of one weight.
    draws = _draws(
        32, temperature=[1e30], top_p=[*(part / 16 for part in range(16)), 1.0], min_p=[0.0, 1.0]
    )
    draws[1].copy_(torch.arange(32).fmod(7) / 8)

    _assert_equals_reference(torch.randn(32, 64), draws)


@pytest.mark.parametrize("rows", [1, 17, 150])
@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
def test_more_rows_than_run_at_once_and_any_spread_draw_the_same(rows: int, spread: float) -> None:
    draws = _draws(
        rows, top_k=[10**9, 40.0, 10**9, 30_000.0], top_p=[0.95, 1.0, 0.3], temperature=[1.0, 0.7]
    )

    for _ in range(3):
        draws[1].copy_(torch.rand(rows, dtype=torch.float64))
        _assert_equals_reference(torch.randn(rows, 129_280) * spread, draws)


@pytest.mark.parametrize("shift", [-1.0, 0.0, 1.0])
def test_weights_are_those_of_torch_to_the_last_unit(shift: float) -> None:
    # Of two tokens the second one is drawn from where the first one ends: just beside that.
    low = torch.linspace(-25.0, 0.0, 200_000)
    logits = torch.stack((low, torch.zeros_like(low)), 1)
    weight = (low.exp() * 2.0**35).round().double()
    chance = ((weight + shift) / (weight + 2.0**35)).clamp(0.0, 1.0 - 2.0**-53)

    _assert_equals_reference(logits, (_draws(len(low))[0], chance))


def test_logits_that_are_not_contiguous_draw_the_same() -> None:
    draws = _draws(ROWS, top_p=TOP_P)

    _assert_equals_reference(torch.randn(ROWS, 200)[:, 50:147], draws)
    _assert_equals_reference(torch.randn(97, ROWS).T, draws)
    _assert_equals_reference(torch.randn(ROWS, 5001)[:, 1:], draws)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("whole", [True, False])
def test_a_row_that_is_no_distribution_gives_some_id_and_harms_no_other(
    value: float, whole: bool
) -> None:
    logits = torch.randn(ROWS, 97)
    draws = _draws(ROWS, top_k=TOP_K, top_p=TOP_P, min_p=MIN_P, temperature=[1.0, 1.0, 0.0])
    want = cuda_backend.sample_unread(logits, *draws)
    broken = torch.arange(ROWS) % 3 != 1
    logits[broken, 0 if whole else 40 :] = value

    tokens = cuda_backend.sample_unread(logits, *draws)

    assert ((tokens >= 0) & (tokens < 97)).all()
    assert_same_bits(tokens[~broken], want[~broken])


@pytest.mark.parametrize("chance", [None, torch.zeros(3, dtype=torch.float64, device="cpu")])
def test_where_no_row_draws_the_largest_logits_are_taken(chance: torch.Tensor | None) -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [0.0, -0.0, -1.0], [-5.0, -5.0, -4.0]])
    drawing, _ = _draws(3, temperature=[0.0])
    params = DrawParams(
        drawing.temperature, drawing.top_k, drawing.top_p, drawing.min_p, False, False
    )

    assert cuda_backend.sample_unread(logits, params, chance).tolist() == [1, 0, 2]
