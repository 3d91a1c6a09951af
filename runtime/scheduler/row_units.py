"""Windows and states of running rows: what a row takes, grows by, hands on and gives back.

A row that starts from a resume point copies that point's window and state: it will write on them.
Where a model has no windows, or no state, nothing is taken of either.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from mem_cache.request_table import RequestTable
from mem_cache.spec import TreeSpec
from mem_cache.tree.handles import Point
from mem_cache.units import Units
from runtime.scheduler.evictions import Evictions

__all__ = ["Claims", "Copies", "RowUnits"]


@dataclass(frozen=True, slots=True)
class Claims:
    """What running rows may need at most of what resume points have, whatever they do next."""

    swa_pages: int
    states: int

    def with_point(self, swa_pages: int, states: int) -> "Claims":
        """Return them beside one more point, whose window has so many pages."""
        return Claims(self.swa_pages + swa_pages, self.states + states)

    @property
    def of_states(self) -> "Claims":
        """The states among them."""
        return Claims(0, self.states)


@dataclass(slots=True)
class Copies:
    """Copies (source, destination) that must run before the next forward pass.

    states  besides, the position that the source is the state of
    """

    pages: list[tuple[int, int]] = field(default_factory=list)
    swa: list[tuple[int, int]] = field(default_factory=list)
    states: list[tuple[int, int, int]] = field(default_factory=list)


class RowUnits:
    """Takes and gives back the windows and states of the rows of a request table.

    Where rows keep a state in another form than resume points do (`Units.live_states`), each has
    one for good. Else a state goes from a row to a point as it is.
    """

    def __init__(
        self, spec: TreeSpec, units: Units, table: RequestTable, evictions: Evictions
    ) -> None:
        assert not units.live_states or table.rows <= units.live_states, "a row has no state"
        self._spec, self._table, self._evictions = spec, table, evictions
        self._swa, self._states = units.swa, units.states
        self._live = units.live_states

    def claims(self, rows: int, copying: int, *, new: int = 0) -> Claims:
        """Return what rows may need at most.

        copying  of them, those that still copy from a point, which keeps its own units meanwhile
        new      rows besides, which may start from points
        """
        states = copying if self._live else rows + new + copying
        return Claims(
            (rows + copying + 2 * new) * self._spec.window_pages,
            states if self._spec.has_state else 0,
        )

    def start(self, row: int, point: Point | None, copies: Copies) -> None:
        """Give a row its state, and from a point also a window; what must be copied is added."""
        state = self._take_state(row)
        if state:
            self._table.write_state(row, state)
        if point is None:
            return
        if state:
            copies.states.append((point.state, state, point.position))
        mine = self._take_swa(len(point.swa_pages))
        copies.swa += zip(point.swa_pages, mine.tolist(), strict=True)
        self._table.write_window(row, 0, mine)

    def grow(self, row: int, end: int) -> None:
        """Give a row the SWA pages that a window at `end` has; it keeps them to its own end."""
        wanted = self._spec.window_pages_at(end)
        have = int(np.count_nonzero(self._table.window[row]))
        if have < wanted:
            self._table.write_window(row, have, self._take_swa(wanted - have))

    def lend(self, row: int, position: int, copies: Copies) -> tuple[list[int], int] | None:
        """Return the window and the state at `position` for a resume point; None without room.

        They are the row's own, or a copy that is added to `copies`; `settle` drops its reference.
        """
        window = self._table.window[row, : self._spec.window_pages_at(position)].tolist()
        state = int(self._table.state[row])
        if self._live and self._spec.has_state:
            if not self._evictions.drop_points(states=1):
                return None
            kept = self._states.take()
            copies.states.append((state, kept, position))
            return window, kept
        return window, state

    def settle(self, state: int) -> None:
        """Drop the reference on a state that `lend` has taken: the point has its own by now."""
        if self._live and state:
            self._states.decref([state])

    def give_back(self, row: int) -> None:
        """Drop what a row holds."""
        window = self._table.window[row]
        self._swa.decref(window[window != 0])
        state = int(self._table.state[row])
        if state and not self._live:
            self._states.decref([state])

    def count(self, row: int, swa: Counter[int], states: Counter[int]) -> None:
        """Add the references that a row holds, by unit; not those of states that rows own."""
        window = self._table.window[row]
        swa.update(window[window != 0].tolist())
        state = int(self._table.state[row])
        if state and not self._live:
            states[state] += 1

    def count_owned(self, states: Counter[int]) -> None:
        """Add the references on states that rows have for good, claimed or not."""
        states.update(range(1, self._live + 1))

    @property
    def swa_held(self) -> int:
        """SWA pages that rows hold, of which they share none."""
        return int(np.count_nonzero(self._table.window))

    @property
    def states_held(self) -> int:
        """States that rows hold."""
        return self._live or int(np.count_nonzero(self._table.state))

    def _take_state(self, row: int) -> int:
        if not self._spec.has_state:
            return 0
        if self._live:
            return row + 1
        self._evictions.drop_points(states=1)
        return self._states.take()

    def _take_swa(self, count: int) -> np.ndarray:
        self._evictions.drop_points(swa_pages=count)
        return self._swa.alloc(count)
