"""Tokens that are computed one by one, in calls of as many rows as decoding steps have."""

__all__ = ["MOST_ROWS", "equal_slices"]

# Rows of a call. What calls allocate stays small, and libraries that compile a kernel for each
# number of rows know those of decoding: powers of two up to this.
MOST_ROWS = 512


def equal_slices(count: int, most: int) -> list[slice]:
    """Cut `count` into parts of one size, a power of two up to `most`; the last two may overlap."""
    if not count:
        return []
    size = 1 << (min(count, most).bit_length() - 1)
    return [slice(first, first + size) for first in (*range(0, count - size, size), count - size)]
