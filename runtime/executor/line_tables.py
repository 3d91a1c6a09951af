"""Where the KV of each line is: page tables, windows and states, kept up to date by plans."""

import numpy as np

from runtime.wire.arrays import INT32, unpacked
from runtime.wire.step import TableChanges

__all__ = ["LineTables"]


class LineTables:
    """The executor's copy of the scheduler's request table, in host memory.

    pages   [lines, P] int32 full page of each page of positions
    window  [lines, W] int32 SWA page of position p at (p // swa_page_size) % W
    state   [lines] int32
    What a line held before somebody else had it may still be there, behind what is in use.
    """

    def __init__(self, lines: int, *, pages: int, window_pages: int) -> None:
        """Make tables of zeros.

        pages         of the longest context
        window_pages  of a window
        """
        self.pages = np.zeros((lines, pages), np.int32)
        self.window = np.zeros((lines, window_pages), np.int32)
        self.state = np.zeros(lines, np.int32)

    def apply(self, changes: TableChanges) -> None:
        """Take in the changes of a plan. Raises IndexError for a line or page there is not."""
        for data, table in ((changes.pages, self.pages), (changes.windows, self.window)):
            if data:
                line, index, unit = unpacked(data, INT32, -1, 3).T
                table[line, index] = unit
        if changes.states:
            line, state = unpacked(changes.states, INT32, -1, 2).T
            self.state[line] = state
