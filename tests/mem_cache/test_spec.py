"""Sizes derived from a specification, against counting by hand."""

import pytest

from mem_cache.spec import PoolSpec, TreeSpec, div_ceil


@pytest.mark.parametrize(
    ("value", "divisor", "quotient"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2)]
)
def test_div_ceil_rounds_up(value: int, divisor: int, quotient: int) -> None:
    assert div_ceil(value, divisor) == quotient


@pytest.mark.parametrize(
    "sizes", [(0, 1, 1), (4, 0, 1), (4, 2, 0), (4, 3, 4), (4, 8, 4), (-4, -2, 1)]
)
def test_sizes_that_do_not_fit_together_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        TreeSpec(*sizes)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 7, 8, 9, 128])
@pytest.mark.parametrize("swa_page_size", [1, 2, 4, 64])
def test_the_window_is_the_pages_of_the_positions_in_it(window: int, swa_page_size: int) -> None:
    spec = TreeSpec(page_size=64, swa_page_size=swa_page_size, window=window)
    widest = 0
    for position in range(3 * window + 2 * swa_page_size):
        touched = {p // swa_page_size for p in range(max(0, position - window), position)}
        assert list(spec.window_page_range(position)) == sorted(touched)
        widest = max(widest, len(touched))

    assert spec.window_pages == widest
    assert spec.window_slots == widest + 1
    assert spec.row_swa_pages == 2 * widest + 1


def test_the_sizes_of_flash_are_those_of_the_design() -> None:
    spec = TreeSpec()

    assert (spec.window_pages, spec.window_slots, spec.row_swa_pages) == (3, 4, 7)
    assert list(spec.window_page_range(1000)) == [13, 14, 15]
    assert list(spec.window_page_range(1024)) == [14, 15]


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
