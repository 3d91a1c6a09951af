"""Drawing without a sort, on the device: the very tokens of the reference."""

from collections.abc import Sequence
from itertools import cycle, islice

import pytest
import torch

from jit_kernels.sample import DrawParams, cuda_backend, host, reference
from jit_kernels.sample.noise import gumbel
from tests.testing.compare import assert_same_bits
from tests.testing.noise_keys import favouring

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
        name: torch.tensor([*islice(cycle(given.get(name, plain)), rows)], dtype=dtype)
        for name, (plain, dtype) in settings.items()
    }
    params = DrawParams(**parts, draws=True, filters=not given.keys() <= {"temperature"})
    return params, _keys(rows)


def _keys(rows: int) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (rows,))


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
@pytest.mark.parametrize("value", [-0.0, 100.0, -torch.finfo(torch.float32).max])
def test_equal_logits_are_kept_up_to_the_exact_number(vocab: int, value: float) -> None:
    kept = torch.tensor([vocab, 1, min(2, vocab), max(1, vocab - 1), vocab // 3 + 1] * 3)
    logits = torch.full((len(kept), vocab), value)
    draws, _ = _draws(len(kept), top_k=kept.tolist(), top_p=[1.0, 1.0, 0.9])

    last = _assert_equals_reference(logits, (draws, favouring(kept - 1)))
    behind = _assert_equals_reference(logits, (draws, favouring(kept)))

    if value > -1e30:  # else noise is less than a unit of the score
        assert_same_bits(last[::3], kept[::3] - 1)
    assert (behind < kept).all()


@pytest.mark.parametrize("vocab", TILED[1:])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_last_token_that_a_filter_keeps_can_win_and_the_next_one_cannot(
    vocab: int, temperature: float
) -> None:
    logits = (torch.randn(ROWS, vocab) * 2).round_(decimals=1)
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    weights = reference.token_weights(logits, torch.full((ROWS,), temperature)).gather(1, order)
    before = weights.cumsum(-1, dtype=torch.float64) - weights
    total = weights.sum(-1, dtype=torch.float64)
    top_p = torch.tensor([0.1, 0.5, 0.9, 0.99] * 3)
    of_mass = (before <= (top_p.double() * total)[:, None]).sum(-1)
    of_rank = torch.arange(1, ROWS + 1) * 3
    for kept, filters in (
        (of_mass, {"top_p": top_p.tolist()}),
        (of_rank, {"top_k": of_rank.tolist()}),
        (of_mass.minimum(of_rank), {"top_p": top_p.tolist(), "top_k": of_rank.tolist()}),
    ):
        draws, _ = _draws(ROWS, temperature=[temperature], **filters)
        last, behind = (order.gather(1, at[:, None])[:, 0] for at in (kept - 1, kept))

        assert_same_bits(_assert_equals_reference(logits, (draws, favouring(last))), last)
        assert (_assert_equals_reference(logits, (draws, favouring(behind))) != behind).all()


@pytest.mark.parametrize("kept", [1500, 2500, 3990])
def test_tokens_too_unlikely_to_weigh_are_kept_as_their_rank_says(kept: int) -> None:
    # 1,000 tokens weigh something, 2,000 of equal logits and 1,097 of falling ones nothing.
    parts = (torch.linspace(1.0, 0.0, 1000), torch.full((2000,), -30.0))
    logits = torch.cat((*parts, torch.linspace(-31.0, -40.0, 1097))).expand(ROWS, 4097)
    draws, _ = _draws(ROWS, top_k=[kept], temperature=[1.0], top_p=[1.0])

    for favoured in (kept - 1, kept):
        tokens = _assert_equals_reference(logits, (draws, favouring(torch.tensor([favoured] * 12))))

        if kept < 3000:
            assert (tokens == favoured).all() == (favoured < kept)


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
    for favoured in range(0, 64, 4):
        tokens = torch.arange(32).add(favoured) % 64
        _assert_equals_reference(torch.randn(32, 64), (draws[0], favouring(tokens)))


@pytest.mark.parametrize("rows", [1, 17, 150])
@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
def test_more_rows_than_run_at_once_and_any_spread_draw_the_same(rows: int, spread: float) -> None:
    draws = _draws(
        rows, top_k=[10**9, 40.0, 10**9, 30_000.0], top_p=[0.95, 1.0, 0.3], temperature=[1.0, 0.7]
    )

    for _ in range(3):
        draws[1].copy_(_keys(rows))
        _assert_equals_reference(torch.randn(rows, 129_280) * spread, draws)


@pytest.mark.parametrize("shift", [-torch.inf, 0.0, torch.inf])
def test_weights_are_those_of_torch_to_the_last_unit(shift: float) -> None:
    # A token is kept from where its weight is min-p, and wins if it is.
    low = torch.linspace(-18.0, -1e-6, 200_000)
    logits = torch.stack((low, torch.zeros_like(low)), 1)
    share = (low.exp() * 2.0**35).round() * 2.0**-35
    if shift:
        share = share.nextafter(torch.full_like(share, shift))
    draws, _ = _draws(len(low), min_p=share.tolist())
    keys = favouring(torch.zeros(1, dtype=torch.int64)).expand(len(low))

    tokens = _assert_equals_reference(logits, (draws, keys))

    assert (tokens == (shift == torch.inf)).all()


def test_tokens_and_noise_have_the_bits_of_the_cpu() -> None:
    # No filter, or top-k: no weight decides.
    logits, (params, keys) = torch.randn(ROWS, 129_280) * 3, _draws(ROWS, top_k=[10**9, 40])
    filters = {name: getattr(params, name).cpu() for name in ("top_k", "top_p", "min_p")}
    with torch.device("cpu"):
        want = reference.draw(
            host.race, logits.cpu(), params.temperature.cpu(), filters, keys.cpu()
        )
        noise = gumbel(keys.cpu(), torch.arange(5000)[None])

    assert_same_bits(_assert_equals_reference(logits, (params, keys)).cpu(), want)
    assert_same_bits(gumbel(keys, torch.arange(5000)[None]).cpu(), noise)


def test_draws_follow_the_softmax() -> None:
    row = torch.randn(100)
    draws = _draws(60_000)

    counts = cuda_backend.sample_unread(row.expand(60_000, 100), *draws).bincount(minlength=100)

    expected = row.double().softmax(-1) * 60_000
    value = ((counts - expected) ** 2 / expected).sum()
    assert torch.special.gammaincc(torch.tensor(49.5).double(), value / 2) > 1e-6


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


@pytest.mark.parametrize("keys", [None, torch.zeros(3, dtype=torch.int64, device="cpu")])
def test_where_no_row_draws_the_largest_logits_are_taken(keys: torch.Tensor | None) -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [0.0, -0.0, -1.0], [-5.0, -5.0, -4.0]])
    drawing, _ = _draws(3, temperature=[0.0])
    params = DrawParams(
        drawing.temperature, drawing.top_k, drawing.top_p, drawing.min_p, False, False
    )

    assert cuda_backend.sample_unread(logits, params, keys).tolist() == [1, 0, 2]
