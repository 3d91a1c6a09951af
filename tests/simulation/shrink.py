"""Makes a script that fails as short as it can: delta debugging over its events.

Source: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (ddmin).
"""

from collections.abc import Callable, Iterator

import msgspec

from tests.simulation.running import Outcome, live_script
from tests.simulation.script import AnyEvent, Arrive, Script

MOST_RUNS = 400


class Shrinker:
    """Keeps the shortest script that fails in the same way.

    best  it, with its outcome
    runs  how many scripts were tried
    """

    def __init__(
        self,
        failed: Outcome,
        *,
        run: Callable[[Script], Outcome] = live_script,
        most_runs: int = MOST_RUNS,
    ) -> None:
        assert failed.fault is not None
        self.best, self.runs = failed, 0
        self._kind = type(failed.fault)
        self._run, self._most = run, most_runs

    def shrink(self) -> Outcome:
        """Return the outcome of the shortest script found."""
        self._drop_events()
        for simpler in _SIMPLER:
            self._simplify(simpler)
        self._drop_events()
        return self.best

    def _fails(self, events: list[AnyEvent]) -> bool:
        """Try a script; keep it if it fails as the first one did."""
        if self.runs >= self._most:
            return False
        self.runs += 1
        outcome = self._run(self.best.script.with_events(events))
        if type(outcome.fault) is not self._kind:
            return False
        self.best = outcome
        return True

    def _drop_events(self) -> None:
        """Leave out runs of events: halves, then quarters, down to single ones."""
        size = max(1, len(self.best.script.events) // 2)
        while self.runs < self._most:
            at, dropped = 0, False
            while at < len(events := list(self.best.script.events)) and self.runs < self._most:
                if self._fails([*events[:at], *events[at + size :]]):
                    dropped = True
                else:
                    at += size
            if size == 1 and not dropped:
                return
            size = max(1, size // 2)

    def _simplify(self, simpler: Callable[[Arrive], Iterator[Arrive]]) -> None:
        """Make calls simpler, one after the other, where it still fails."""
        for at in range(len(self.best.script.events)):
            events = list(self.best.script.events)
            call = events[at] if at < len(events) else None
            if not isinstance(call, Arrive):
                continue
            for other in simpler(call):
                if other != call and self._fails([*events[:at], other, *events[at + 1 :]]):
                    break


def _plain(call: Arrive) -> Iterator[Arrive]:
    """Yield a call without anything special, then with less of it."""
    yield Arrive(at=call.at, key=call.key, prompt=call.prompt, new=call.new)
    yield msgspec.structs.replace(call, stop=(), stop_ids=(), logprobs=False, boundaries=())
    yield msgspec.structs.replace(call, n=1, reader="read", share=0, priority=0)


def _short(call: Arrive) -> Iterator[Arrive]:
    """Yield a call with less to say."""
    for new in (0, 1, 2, 4, 8):
        if call.new is None or new < call.new:
            yield msgspec.structs.replace(call, new=new, least=min(call.least, new))


_SIMPLER = (_plain, _short)
