"""Sizes derived from a specification, against counting by hand."""

import pytest

from layers.models.deepseek_v4.pool_spec import PoolSpec
from mem_cache.spec import TreeSpec, div_ceil


@pytest.mark.parametrize(
    ("value", "divisor", "quotient"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2)]
)
def test_div_ceil_rounds_up(value: int, divisor: int, quotient: int) -> None:
    assert div_ceil(value, divisor) == quotient


@pytest.mark.parametrize(
    "sizes", [(0, 1, 1), (4, 0, 1), (4, 2, -1), (4, 3, 4), (4, 8, 4), (-4, -2, 1)]
)
def test_sizes_that_do_not_fit_together_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        TreeSpec(*sizes)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 7, 8, 9, 128])
@pytest.mark.parametrize("swa_page_size", [1, 2, 4, 64])
def test_a_ring_written_position_by_position_always_holds_the_window(
    window: int, swa_page_size: int
) -> None:
    spec = TreeSpec(page_size=64, swa_page_size=swa_page_size, window=window)
    places: dict[tuple[int, int], int] = {}
    used: set[int] = set()
    for position in range(3 * window + 2 * swa_page_size):
        held = set(places.values())
        assert held >= set(range(max(0, position - window), position))
        used = {slot for slot, _ in places}
        assert used == set(range(spec.window_pages_at(position)))

        slot = position // swa_page_size % spec.window_pages
        places[slot, position % swa_page_size] = position

    assert len(used) == spec.window_pages
    assert spec.row_swa_pages == 2 * spec.window_pages


@pytest.mark.parametrize("draft_tokens", [-1, 8])
def test_no_more_than_seven_tokens_are_guessed_in_a_step(draft_tokens: int) -> None:
    with pytest.raises(ValueError, match="draft_tokens must be 0 to 7"):
        TreeSpec(draft_tokens=draft_tokens)


@pytest.mark.parametrize("window", [1, 2, 7, 128])
@pytest.mark.parametrize("swa_page_size", [1, 4, 64])
@pytest.mark.parametrize("draft_tokens", [1, 3, 7])
def test_a_ring_holds_the_window_wherever_draft_tokens_are_rejected(
    window: int, swa_page_size: int, draft_tokens: int
) -> None:
    spec = TreeSpec(64, swa_page_size, window, draft_tokens)
    entries = spec.window_pages * swa_page_size
    places: dict[int, int] = {}
    length = 0
    for step in range(6 * window + 2 * swa_page_size):
        written = range(length, length + 1 + step % (draft_tokens + 1))
        places |= {position % entries: position for position in written}
        pages = {position % entries // swa_page_size for position in written}
        assert pages <= set(range(spec.window_pages_at(written.stop)))

        length += 1 + step * step % len(written)
        needed = range(max(0, length - window), length)
        assert all(places[position % entries] == position for position in needed)


@pytest.mark.parametrize("draft_tokens", range(8))
def test_rings_of_state_hold_what_is_read_wherever_draft_tokens_are_rejected(
    draft_tokens: int,
) -> None:
    tree = TreeSpec(draft_tokens=draft_tokens)
    spec = PoolSpec(tree, (0, 4, 128), 512, 64, 128, "fp8")
    if not draft_tokens:
        assert (spec.state_rows, spec.state_banks) == (8, 2)
    start = 1000
    for entries, span in ((spec.state_rows, 8), (spec.state_banks, 2)):
        # Whatever is accepted, what lies before the end is kept, and every token has an entry.
        kept = range(start + 1 - span, start + 1 + draft_tokens)
        assert len({position % entries for position in kept}) == len(kept)
    assert spec.replay_tokens == 128 + 2 * 127


def test_a_window_with_draft_tokens_takes_one_page_more() -> None:
    for draft_tokens in range(1, 8):
        spec = TreeSpec(draft_tokens=draft_tokens)

        assert (spec.window_pages, spec.row_swa_pages) == (3, 6)
        assert [spec.window_pages_at(p) for p in (0, 1, 65, 128, 129, 1000)] == [0, 1, 2, 2, 3, 3]
    assert TreeSpec(window=100, draft_tokens=7).window_pages == 2


@pytest.mark.parametrize("window", [2, 4, 128])
def test_a_ring_is_no_larger_than_it_must_be(window: int) -> None:
    assert TreeSpec(64, 2, window).window_pages * 2 == window


def test_the_sizes_of_flash_are_those_of_the_design() -> None:
    spec = TreeSpec()

    assert (spec.window_pages, spec.row_swa_pages) == (2, 4)
    assert [spec.window_pages_at(p) for p in (0, 1, 64, 65, 128, 1000)] == [0, 1, 1, 2, 2, 2]


def test_a_pool_specification_finds_its_layers_by_ratio() -> None:
    spec = PoolSpec(
        tree=TreeSpec(),
        layer_ratios=(0, 0, 4, 128, 4),
        head_dim=512,
        rope_dim=64,
        index_head_dim=128,
        record_format="fp8",
    )

    assert spec.num_layers == 5
    assert spec.layers_with_ratio(4) == (2, 4)
    assert spec.layers_with_ratio(128) == (3,)
    assert spec.layers_with_ratio(7) == ()


@pytest.mark.parametrize(
    ("window", "ratios", "tokens"),
    [
        (128, (0, 4, 128), 128 + 2 * 127),
        (2, (0, 0), 2 + 1),
        (2, (0, 4), 8 + 1),
        (100, (4, 128), 128 + 99),
        (200, (128,), 200),
    ],
)
def test_a_replay_reaches_back_over_window_and_ring(
    window: int, ratios: tuple[int, ...], tokens: int
) -> None:
    for draft_tokens in (0, 7):
        tree = TreeSpec(window=window, draft_tokens=draft_tokens)
        spec = PoolSpec(tree, ratios, 512, 64, 128, "fp8")

        assert spec.replay_tokens == tokens
