"""Copies of units inside a pool, in groups that can be made at once."""

from collections.abc import Iterator, Sequence

__all__ = ["apart"]


def apart(pairs: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield copies (source, destination) in their order, in groups that can be made at once.

    In a group nothing is written twice, and nothing both read and written.
    """
    group: list[tuple[int, int]] = []
    read, written = set[int](), set[int]()
    for source, destination in pairs:
        if destination in read or destination in written or source in written:
            yield group
            group, read, written = [], set(), set()
        group.append((source, destination))
        read.add(source)
        written.add(destination)
    if group:
        yield group
