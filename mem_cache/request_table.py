"""One line per running request: which pages, window and ring its positions are in."""

import numpy as np

from mem_cache.errors import IntegrityError, OutOfPages
from mem_cache.spec import TreeSpec


class RequestTable:
    """Rows of running requests; a free row is all zeros, the dummy of every pool.

    page_table  [rows, max_pages] int32       full page of each page of positions
    window      [rows, window_pages] int32    SWA page of position p at (p // swa_page_size) % pages
    ring        [rows] int32                  compress state
    length      [rows] int64                  tokens whose KV is written or planned
    The arrays are written by whoever claimed the row.
    """

    def __init__(self, spec: TreeSpec, *, rows: int, max_pages: int) -> None:
        self.page_table = np.zeros((rows, max_pages), np.int32)
        self.window = np.zeros((rows, spec.window_pages), np.int32)
        self.ring = np.zeros(rows, np.int32)
        self.length = np.zeros(rows, np.int64)
        self._claimed = np.zeros(rows, np.bool_)
        self._free = list(range(rows - 1, -1, -1))

    @property
    def free(self) -> int:
        """Rows that nobody has claimed."""
        return len(self._free)

    def claim(self) -> int:
        """Take a free row. Raises OutOfPages if there is none."""
        if not self._free:
            raise OutOfPages("rows", 1, 0)
        row = self._free.pop()
        self._claimed[row] = True
        return row

    def release(self, row: int) -> None:
        """Zero a claimed row and give it back. Raises IntegrityError if it is free already."""
        if not 0 <= row < len(self._claimed) or not self._claimed[row]:
            raise IntegrityError(f"row {row} is not claimed")
        self._claimed[row] = False
        self.page_table[row] = 0
        self.window[row] = 0
        self.ring[row] = 0
        self.length[row] = 0
        self._free.append(row)
