"""One line per running request: which pages, window and state its positions are in."""

from dataclasses import dataclass

import numpy as np

from mem_cache.errors import IntegrityError, OutOfPages
from mem_cache.spec import TreeSpec

__all__ = ["RequestTable", "RowChanges"]


@dataclass(frozen=True, slots=True)
class RowChanges:
    """What was written since somebody last asked, in order; all int32.

    released  [k] rows that were released, which may be claimed again by now
    pages     [k, 3] row, index in its page table, full page
    windows   [k, 3] row, index in its window, SWA page
    states     [k, 2] row, state
    """

    released: np.ndarray
    pages: np.ndarray
    windows: np.ndarray
    states: np.ndarray


class RequestTable:
    """Rows of running requests; a free row is all zeros, the dummy of every pool.

    page_table  [rows, max_pages] int32       full page of each page of positions
    window      [rows, window_pages] int32    SWA page of position p at (p // swa_page_size) % pages
    state        [rows] int32                  compress state
    length      [rows] int64                  tokens whose KV is written or planned
    Whoever claimed the row writes the first three by the methods here, which keep `RowChanges`,
    and `length` directly.
    """

    def __init__(self, spec: TreeSpec, *, rows: int, max_pages: int) -> None:
        self.page_table = np.zeros((rows, max_pages), np.int32)
        self.window = np.zeros((rows, spec.window_pages), np.int32)
        self.state = np.zeros(rows, np.int32)
        self.length = np.zeros(rows, np.int64)
        self._claimed = np.zeros(rows, np.bool_)
        self._free = list(range(rows - 1, -1, -1))
        self._forget_changes()

    @property
    def rows(self) -> int:
        """Rows there are, claimed or not."""
        return len(self.length)

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
        self.state[row] = 0
        self.length[row] = 0
        self._free.append(row)
        self._released.append(row)

    def write_pages(self, row: int, first: int, pages: np.ndarray) -> None:
        """Write full pages into a row, from index `first` on."""
        self.page_table[row, first : first + len(pages)] = pages
        if len(pages):
            self._pages.append(_written(row, first, pages))

    def write_window(self, row: int, first: int, pages: np.ndarray) -> None:
        """Write SWA pages into a row's window, from index `first` on."""
        self.window[row, first : first + len(pages)] = pages
        if len(pages):
            self._windows.append(_written(row, first, pages))

    def write_state(self, row: int, state: int) -> None:
        """Write a row's state."""
        self.state[row] = state
        self._states.append((row, state))

    def take_changes(self) -> RowChanges:
        """Return the changes since the last call."""
        changes = RowChanges(
            np.array(self._released, dtype=np.int32),
            _together(self._pages),
            _together(self._windows),
            np.array(self._states, dtype=np.int32).reshape(-1, 2),
        )
        self._forget_changes()
        return changes

    def _forget_changes(self) -> None:
        self._released: list[int] = []
        self._pages: list[np.ndarray] = []
        self._windows: list[np.ndarray] = []
        self._states: list[tuple[int, int]] = []


def _written(row: int, first: int, pages: np.ndarray) -> np.ndarray:
    written = np.empty((len(pages), 3), np.int32)
    written[:, 0] = row
    written[:, 1] = np.arange(first, first + len(pages))
    written[:, 2] = pages
    return written


def _together(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros((0, 3), np.int32)
