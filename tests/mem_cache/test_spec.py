"""Sizes derived from a specification, against counting by hand."""

import pytest

from mem_cache.spec import CacheSpec, Paged, PoolSizes, State, TreeSpec, Window, div_ceil


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


def test_a_model_is_the_sum_of_its_groups() -> None:
    cache = CacheSpec(
        "fp32",
        paged=(Paged("keys", 7), Paged("values", 5)),
        windows=(Window("short", 4, 3), Window("long", 9, 2)),
        states=(State("sums", live_bytes=8, kept_bytes=6), State("rows", 4, 4)),
        page_size=16,
        swa_page_size=4,
        draft_tokens=2,
    )

    assert cache.tree == TreeSpec(16, 4, window=9, draft_tokens=2)
    assert cache.tree.growth_tokens == 4
    assert (cache.full_page_bytes, cache.swa_page_bytes) == (12, 5)
    assert (cache.live_state_bytes, cache.state_bytes, cache.packs_states) == (12, 10, True)


@pytest.mark.parametrize(("live", "packs"), [((6, 4), False), ((7, 4), True), ((7, 5), True)])
def test_states_are_packed_where_any_group_keeps_them_in_another_form(
    live: tuple[int, int], packs: bool
) -> None:
    states = (State("sums", live[0], 6), State("rows", live[1], 4))

    assert CacheSpec("fp32", paged=(), states=states).packs_states == packs


def test_a_model_of_pages_alone_has_no_window_no_state_and_no_points() -> None:
    cache = CacheSpec("bf16", paged=(Paged("kv", 4096),))
    tree = cache.tree

    assert (cache.swa_page_bytes, cache.state_bytes, cache.packs_states) == (0, 0, False)
    assert (tree.window, tree.has_state, tree.has_points) == (0, False, False)
    assert (tree.window_pages, tree.row_swa_pages, tree.window_pages_at(1000)) == (0, 0, 0)
    assert tree.growth_tokens == tree.page_size


@pytest.mark.parametrize(("window", "has_state"), [(128, False), (0, True), (128, True)])
def test_points_are_needed_for_a_window_or_a_state(window: int, has_state: bool) -> None:
    assert TreeSpec(window=window, has_state=has_state).has_points


def test_states_that_no_row_owns_are_for_points() -> None:
    assert PoolSizes(1, 1, states=9, live_states=4).kept_states == 5
    assert PoolSizes(1, 1, states=9).kept_states == 9
