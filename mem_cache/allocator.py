"""Which units of one pool are free, and how many references each of the others has.

Full pages, SWA pages and rings are each handed out by one `PageAllocator`. A unit has one
reference when it is allocated and is free again when the last one is dropped; the tree takes
references on what it adopts, rows drop their own.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from mem_cache.errors import IntegrityError, OutOfPages

Units = Sequence[int] | np.ndarray

_ONE = np.int32(1)


class PageAllocator:
    """Hands out units 1..capacity of one pool and counts their references.

    Unit 0 is the dummy that padding rows write to: it is never handed out and cannot be counted.
    A call costs a few numpy operations, whatever the number of units.
    """

    def __init__(self, name: str, capacity: int) -> None:
        if capacity < 0:
            raise ValueError(f"capacity of pool {name} must not be negative: {capacity}")
        self.name = name
        self.capacity = capacity
        self._references = np.zeros(capacity + 1, np.int32)
        # A stack; the lowest unit lies on top, so that a fresh pool is handed out in order.
        self._stack = np.arange(capacity, 0, -1, dtype=np.int32)
        self._free = capacity
        self._order = np.zeros(capacity + 1, np.int32)

    @property
    def free(self) -> int:
        """Units that nobody refers to."""
        return self._free

    def alloc(self, count: int) -> np.ndarray:
        """Take `count` free units and return them, int32 [count], with one reference each.

        Raises OutOfPages, and takes nothing, if fewer are free.
        """
        if count < 0:
            raise ValueError(f"pool {self.name}: cannot allocate {count} units")
        if count > self._free:
            raise OutOfPages(self.name, count, self._free)
        units = self._stack[self._free - count : self._free][::-1].copy()
        self._references[units] = 1
        self._free -= count
        return units

    def incref(self, units: Units) -> None:
        """Add one reference to each of `units`; a unit named twice gets two.

        Raises IntegrityError, and changes nothing, if one of them is free or is the dummy.
        """
        index, counts = self._index(units)
        if np.count_nonzero(counts) < len(counts):
            raise IntegrityError(
                f"pool {self.name}: reference to free unit {index[counts == 0][0]}"
            )
        np.add.at(self._references, index, _ONE)

    def decref(self, units: Units) -> int:
        """Drop one reference of each of `units`; return how many became free.

        Raises IntegrityError, and changes nothing, if a unit has fewer references than it is
        named here; the dummy has none.
        """
        index, _ = self._index(units)
        np.subtract.at(self._references, index, _ONE)
        left = self._references[index]
        if np.count_nonzero(left < 0):
            np.add.at(self._references, index, _ONE)
            raise IntegrityError(f"pool {self.name}: double free of unit {index[left < 0][0]}")
        freed = index[left == 0]
        if len(freed) > 1:
            freed = self._without_repeats(freed)
        self._stack[self._free : self._free + len(freed)] = freed[::-1]
        self._free += len(freed)
        return len(freed)

    def references(self, unit: int) -> int:
        """Return how many references `unit` has; 0 if it is free."""
        return int(self._index((unit,))[1][0])

    def check(self, expected: Counter[int] | np.ndarray) -> None:
        """Verify that every unit has the expected references and that exactly the rest is free.

        expected  references by unit: a counter, or an array of capacity + 1 counts
        Raises IntegrityError naming a unit that is wrong.
        """
        wanted = np.zeros(self.capacity + 1, np.int64)
        if isinstance(expected, np.ndarray):
            wanted[:] = expected
        else:
            for unit, count in expected.items():
                wanted[self._index((unit,))[0]] += count
        wrong = np.flatnonzero(wanted != self._references)
        if len(wrong):
            unit = int(wrong[0])
            raise IntegrityError(
                f"pool {self.name}: unit {unit} has {self._references[unit]} references, "
                f"{wanted[unit]} are accounted for"
            )
        free = np.sort(self._stack[: self._free])
        unused = np.flatnonzero(self._references[1:] == 0) + 1
        if not np.array_equal(free, unused):
            unit = int(np.setxor1d(free, unused)[0]) if len(set(free.tolist())) == len(free) else 0
            raise IntegrityError(
                f"pool {self.name}: free list of {len(free)} does not name the {len(unused)} "
                f"unused units once each (unit {unit})"
            )

    def _index(self, units: Units) -> tuple[np.ndarray, np.ndarray]:
        """Return the units as an index, and their reference counts; refuse what does not exist."""
        # Seen as unsigned, a negative unit is out of bounds and does not count from the end.
        index = np.asarray(units, np.int32).view(np.uint32).astype(np.intp)
        try:
            return index, self._references[index]
        except IndexError:
            outside = index[index > self.capacity][:1].astype(np.int32)[0]
            message = f"pool {self.name}: no unit {outside} of {self.capacity}"
        raise IntegrityError(message)

    def _without_repeats(self, units: np.ndarray) -> np.ndarray:
        """Return each unit once. Sorting would cost more than writing and reading back."""
        order = np.arange(len(units), dtype=np.int32)
        self._order[units] = order
        return units[self._order[units] == order]
