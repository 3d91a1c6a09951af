"""Which processor takes which tiles of which row, where an attention kernel wants to be told.

FlashMLA's kernels do. Left alone they run a planner of their own before the first call of each
kind: one thread that goes through all processors and rows, and that cuts a long row for all of
them. `plan_splits` makes the plans of all kinds in one launch, and cuts a row only into as many
parts as adding them up is worth. `KERNEL_PLAN_SPLITS=reference` leaves it to FlashMLA.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from jit_kernels.checks import ShapeError
from jit_kernels.cuda_device import why_no_hopper
from jit_kernels.registry import Backend, select

__all__ = [
    "KEY_TILE",
    "MOST_KINDS",
    "RECORD_WORDS",
    "KeyCounts",
    "SplitPlan",
    "leave_to_the_vendor",
    "plan_splits",
    "together",
]

KEY_TILE, MOST_KINDS = 64, 3
# Of what a plan says to a processor.
RECORD_WORDS = 8


@dataclass(frozen=True, slots=True, eq=False)
class KeyCounts:
    """How many keys the calls of one kind read: columns of slots, and lengths where there are any.

    lengths, extra_lengths  [B] int32, as in `PagedKeys`, by the very tensor; None: all columns
    extra_columns           0: there is no such set
    """

    columns: int
    lengths: torch.Tensor | None
    extra_columns: int = 0
    extra_lengths: torch.Tensor | None = None

    def same(self, other: "KeyCounts") -> bool:
        """Say whether calls of one kind may use the plan of the other."""
        columns = self.columns, self.extra_columns
        return (
            columns == (other.columns, other.extra_columns)
            and self.lengths is other.lengths
            and self.extra_lengths is other.extra_lengths
        )


@dataclass(slots=True, eq=False)
class SplitPlan:
    """How the calls of one step divide the keys among the device's processors.

    Calls of one step whose sets have the same shapes and lengths (the layers of one kind) share a
    plan: the first fills it by a launch of its own, which is then part of a CUDA graph that is
    being captured. So a plan is made inside the capture, and never outlives its step or graph.

    counts  of the calls that will use it; None: known with the first call
    kinds   plans that are filled by the same launch, this one among them; see `together`
    """

    held: dict[str, Any] = field(default_factory=dict[str, Any])
    counts: KeyCounts | None = None
    kinds: list["SplitPlan"] = field(default_factory=list["SplitPlan"], repr=False)


def together(counts: Sequence[KeyCounts]) -> list[SplitPlan]:
    """Return the plans of a step's kinds of calls, of equally many rows and heads.

    The first call of any kind fills all of them, so by then all lengths must have been written.
    Raises ShapeError for more than three kinds.
    """
    if len(counts) > MOST_KINDS:
        raise ShapeError(f"plans of {len(counts)} kinds, expected at most {MOST_KINDS}")
    kinds = [SplitPlan(counts=each) for each in counts]
    for plan in kinds:
        plan.kinds = kinds
    return kinds


def leave_to_the_vendor(q: torch.Tensor, counts: Sequence[KeyCounts], processors: int) -> None:
    """Make no plan: FlashMLA's planner runs with the first call of each kind."""


_Plans = tuple[torch.Tensor, torch.Tensor]
_MODULE = "jit_kernels.paged_attention"
_plan_splits: Callable[[torch.Tensor, Sequence[KeyCounts], int], _Plans | None] = select(
    "plan_splits",
    [
        Backend("cuda", f"{_MODULE}.cuda_splits_backend:plan_splits", why_no_hopper, "cuda"),
        Backend("reference", f"{_MODULE}.split_plans:leave_to_the_vendor"),
    ],
)


def plan_splits(q: torch.Tensor, counts: Sequence[KeyCounts], processors: int) -> _Plans | None:
    """Return the plans of up to three kinds of calls in FlashMLA's layout; None: it makes them.

    q           [B, ...]   any tensor with as many rows, on the device of the lengths; B at least 1
    counts      what each kind reads
    processors  parts that run at once, and so the number of records

    Returns (records [kinds, processors, 8], splits [kinds, B + 1]) int32. A row r that is read in
    parts leaves their results under the numbers splits[r] .. splits[r + 1] - 1; a row that is not
    has one number, unused. A record is what one processor does: first row, last row, first tile of
    the first row, end of the tiles of the last row, which part of the first row its own is, whether
    the first and the last row are read in parts, padding. Rows between are read whole. An idle
    processor starts at row B.
    """
    return _plan_splits(q, counts, processors)
