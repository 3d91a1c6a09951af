"""The rows of a plan as arrays."""

from dataclasses import dataclass, replace

import numpy as np

from runtime.wire.arrays import INT32, INT64, UINT8, column, unpacked
from runtime.wire.step import Rows, StepPlan

__all__ = ["LAST_TOKEN", "LENGTH", "PlanRows", "sampled_entries"]

# Values of `Rows.from_device`.
LAST_TOKEN = 1
LENGTH = 2


@dataclass(frozen=True, slots=True)
class PlanRows:
    """`runtime.wire.step.Rows` as arrays: n rows, T tokens.

    line, count, drafts             [n] int32
    start, window_from, write_from  [n] int64
    from_device                     [n] uint8
    ids                             [T] int32
    """

    line: np.ndarray
    start: np.ndarray
    count: np.ndarray
    ids: np.ndarray
    from_device: np.ndarray
    drafts: np.ndarray
    window_from: np.ndarray
    write_from: np.ndarray

    @classmethod
    def of(cls, rows: Rows) -> "PlanRows":
        """Return the arrays behind a message. Raises ValueError where sizes do not fit."""
        line = unpacked(rows.line, INT32)
        n = len(line)
        count = unpacked(rows.count, INT32, n)
        return cls(
            line=line,
            start=unpacked(rows.start, INT64, n),
            count=count,
            ids=unpacked(rows.ids, INT32, int(count.sum())),
            from_device=column(rows.from_device, UINT8, n),
            drafts=column(rows.drafts, INT32, n),
            window_from=column(rows.window_from, INT64, n),
            write_from=column(rows.write_from, INT64, n),
        )

    @property
    def end(self) -> np.ndarray:
        """[n] int64 the position behind each row's last token."""
        return self.start + self.count

    @property
    def last_index(self) -> np.ndarray:
        """[n] int64 which of the T tokens is each row's last."""
        return np.cumsum(self.count) - 1

    @property
    def fed(self) -> np.ndarray:
        """[f] int64 rows whose first token only the device has."""
        return np.flatnonzero(self.from_device)

    def starting_at(self, start: np.ndarray) -> "PlanRows":
        """Return them with other starts, [n] int64."""
        return replace(self, start=start)


def sampled_entries(plan: StepPlan) -> tuple[np.ndarray, np.ndarray]:
    """Return (row, line) of each entry that a plan samples, each [s] int32."""
    row, line = unpacked(plan.sampled, INT32, -1, 2).T
    return row, line
