"""Rows of a step in groups of as many tokens each, for kernels that take no others."""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

__all__ = ["spans"]


def spans(counts: Sequence[int] | None, rows: int, most: int) -> Iterator[tuple[slice, slice, int]]:
    """Yield (rows, their tokens, tokens of the row behind them) of groups, in order.

    counts  tokens of each row, laid end to end; None: one each
    most    tokens of a longer row that one group has

    Rows of one token that follow each other are one group; one of more tokens is one or several.
    """
    if counts is None:
        yield slice(0, rows), slice(0, rows), 0
        return
    row = token = 0
    for count, alike in groupby(counts):
        number = len(list(alike))
        if count == 1:
            yield slice(row, row + number), slice(token, token + number), 0
        else:
            for nth in range(number):
                first, stop = token + nth * count, token + (nth + 1) * count
                for begin, end in pairwise([*range(first, stop, max(1, most)), stop]):
                    yield slice(row + nth, row + nth + 1), slice(begin, end), stop - end
        row, token = row + number, token + number * count
