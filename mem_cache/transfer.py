"""Units that go from one cache to another: of which pools, from where, to where.

Both caches have the same groups and byte maps. Each has allocators of its own, so that a unit has
another id in each; its bits are the same.

    giver   reads its source units, which must not be freed before
    taker   writes them to units that it has allocated
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Transfer", "UnitIds"]


@dataclass(frozen=True, slots=True)
class UnitIds:
    """Units of each pool.

    states  of resume points, in their form
    """

    pages: Sequence[int] = ()
    swa_pages: Sequence[int] = ()
    states: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Transfer:
    """Units of one cache that are copied to units of another.

    giver, taker  numbers of the two
    source        of the giver, and
    target        as many of the taker, in the same order
    """

    giver: int
    taker: int
    source: UnitIds
    target: UnitIds
