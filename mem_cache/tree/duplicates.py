"""Evicts first what another tree has a copy of."""

from mem_cache.tree.core.binding import library
from mem_cache.tree.handles import Match
from mem_cache.tree.radix import ShadowRadixCache

__all__ = ["cool"]


def cool(cache: ShadowRadixCache, match: Match) -> None:
    """Make what was matched the first to be evicted, since another tree has a copy of it.

    That is the last page, all above it that nothing else needs, and the resume point. Nothing
    changes where the last page is locked, or where others follow it: then requests branch there,
    and it is more than a duplicate. The next use makes it recent again.
    """
    arrays, point = cache.arrays, match.point
    number = 0
    if point is not None and arrays.point_words["position"].item(point.id) == point.position:
        number = point.id
    library().tree_cool(arrays.pointer, match.node, number)
