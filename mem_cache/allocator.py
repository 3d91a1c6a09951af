"""Which units of one pool are free, and how many references each of the others has.

Full pages, SWA pages and rings are each handed out by one `PageAllocator`. A unit has one
reference when it is allocated and is free again when the last one is dropped; the tree takes
references on what it adopts, rows drop their own.
"""

import ctypes
from collections import Counter
from collections.abc import Sequence

import numpy as np

from mem_cache.errors import IntegrityError, OutOfPages
from mem_cache.tree.core.binding import FAULT_NO_UNIT, CPool, address, library

Units = Sequence[int] | np.ndarray


class PageAllocator:
    """Hands out units 1..capacity of one pool and counts their references.

    Unit 0 is the dummy that padding rows write to: it is never handed out and cannot be counted.
    """

    def __init__(self, name: str, capacity: int) -> None:
        if capacity < 0:
            raise ValueError(f"capacity of pool {name} must not be negative: {capacity}")
        self.name = name
        self.capacity = capacity
        self._references = np.zeros(capacity + 1, np.int32)
        # A stack; the lowest unit lies on top, so that a fresh pool is handed out in order.
        self._stack = np.arange(capacity, -1, -1, dtype=np.int32)
        core = library()
        self._alloc, self._incref = core.pool_alloc, core.pool_incref
        self._decref = core.pool_decref
        self.pool = CPool(address(self._references), address(self._stack), capacity, capacity, 0)
        self._pool = ctypes.addressof(self.pool)
        # Where the core writes what it hands out: to ask for an address costs more than a copy.
        self._taken = np.zeros(max(1, capacity), np.int32)
        self._taken_address = address(self._taken)

    @property
    def free(self) -> int:
        """Units that nobody refers to."""
        return self.pool.free

    def alloc(self, count: int) -> np.ndarray:
        """Take `count` free units and return them, int32 [count], with one reference each.

        Raises OutOfPages, and takes nothing, if fewer are free.
        """
        if count < 0:
            raise ValueError(f"pool {self.name}: cannot allocate {count} units")
        if count > self.pool.free:
            raise OutOfPages(self.name, count, self.pool.free)
        self._alloc(self._pool, count, self._taken_address)
        return self._taken[:count].copy()

    def take(self) -> int:
        """Take one free unit. Raises OutOfPages if there is none."""
        if self._alloc(self._pool, 1, self._taken_address) < 0:
            raise OutOfPages(self.name, 1, 0)
        return self._taken.item(0)

    def incref(self, units: Units) -> None:
        """Add one reference to each of `units`; a unit named twice gets two.

        Raises IntegrityError, and changes nothing, if one of them is free or is the dummy.
        """
        index = np.ascontiguousarray(units, np.int32)
        fault = self._incref(self._pool, address(index), len(index))
        if fault < 0:
            raise self._fault(fault, "reference to free")

    def decref(self, units: Units) -> int:
        """Drop one reference of each of `units`; return how many became free.

        Raises IntegrityError, and changes nothing, if a unit has fewer references than it is
        named here; the dummy has none.
        """
        index = np.ascontiguousarray(units, np.int32)
        freed = self._decref(self._pool, address(index), len(index))
        if freed < 0:
            raise self._fault(freed, "double free of")
        return freed

    def references(self, unit: int) -> int:
        """Return how many references `unit` has; 0 if it is free."""
        return int(self._references[self._inside(unit)])

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
                wanted[self._inside(unit)] += count
        wrong = np.flatnonzero(wanted != self._references)
        if len(wrong):
            unit = int(wrong[0])
            raise IntegrityError(
                f"pool {self.name}: unit {unit} has {self._references[unit]} references, "
                f"{wanted[unit]} are accounted for"
            )
        free = np.sort(self._stack[: self.free])
        unused = np.flatnonzero(self._references[1:] == 0) + 1
        if not np.array_equal(free, unused):
            unit = int(np.setxor1d(free, unused)[0]) if len(set(free.tolist())) == len(free) else 0
            raise IntegrityError(
                f"pool {self.name}: free list of {len(free)} does not name the {len(unused)} "
                f"unused units once each (unit {unit})"
            )

    def _inside(self, unit: int) -> int:
        if not 0 <= unit <= self.capacity:
            raise self._no_unit(unit)
        return unit

    def _no_unit(self, unit: int) -> IntegrityError:
        return IntegrityError(f"pool {self.name}: no unit {unit} of {self.capacity}")

    def _fault(self, fault: int, what: str) -> IntegrityError:
        unit = self.pool.culprit
        if fault == FAULT_NO_UNIT and unit:
            return self._no_unit(unit)
        return IntegrityError(f"pool {self.name}: {what} unit {unit}")
