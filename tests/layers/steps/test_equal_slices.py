"""Slices of tokens that are computed one by one."""

import pytest

from layers.steps.equal_slices import equal_slices


@pytest.mark.parametrize("count", [1, 2, 3, 31, 32, 33, 64, 100])
def test_slices_are_of_one_size_and_cover_all(count: int) -> None:
    slices = equal_slices(count, 40)

    sizes = {part.stop - part.start for part in slices}
    covered = {token for part in slices for token in range(part.start, part.stop)}
    assert covered == set(range(count))
    assert sizes == {min(32, 1 << (count.bit_length() - 1))}


def test_nothing_is_cut_into_nothing() -> None:
    assert equal_slices(0, 40) == []
