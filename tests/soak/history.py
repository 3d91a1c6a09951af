"""What a life looked like over time: memory, gauges, latencies."""

from dataclasses import dataclass, field

__all__ = ["History", "Series"]

Series = list[tuple[float, float]]


@dataclass
class History:
    """Samples, each at a number of seconds since the life began.

    memory     MiB of each process, by its name
    state      the scheduler's counters and gauges
    latencies  (end, seconds) of each call, by kind
    """

    memory: dict[str, Series] = field(default_factory=dict[str, Series])
    state: list[tuple[float, dict[str, float]]] = field(
        default_factory=list[tuple[float, dict[str, float]]]
    )
    latencies: dict[str, Series] = field(default_factory=dict[str, Series])

    def gauge(self, name: str) -> Series:
        """Return a gauge over time."""
        return [(at, state[name]) for at, state in self.state if name in state]

    def ratio(self, part: str, whole: str) -> Series:
        """Return what one counter grew by, of what another did, between samples."""
        found: Series = []
        for (_, old), (at, new) in zip(self.state, self.state[1:], strict=False):
            if new[whole] > old[whole]:
                found.append((at, (new[part] - old[part]) / (new[whole] - old[whole])))
        return found

    def rate(self, name: str) -> Series:
        """Return what a counter grew by in a second, between samples."""
        return [
            (at, (new[name] - old[name]) / (at - before))
            for (before, old), (at, new) in zip(self.state, self.state[1:], strict=False)
            if at > before
        ]

    def percentile(self, share: float, *, parts: int = 60) -> Series:
        """Return a percentile of the latencies of all calls, in ms, in each part of the time."""
        calls = sorted(call for kind in self.latencies.values() for call in kind)
        if not calls:
            return []
        width = max(calls[-1][0] / parts, 1e-9)
        found: Series = []
        for part in range(parts):
            inside = sorted(
                seconds for at, seconds in calls if part * width < at <= (part + 1) * width
            )
            if inside:
                value = inside[min(len(inside) - 1, int(share * len(inside)))]
                found.append(((part + 0.5) * width, 1000 * value))
        return found
