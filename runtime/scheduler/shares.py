"""Weighted fair shares: which client's waiting request gets the next row.

Each request belongs to a share: an API key, or a client address. The service of a share is the
number of tokens computed and sampled for it, divided by its weight; the waiting share with the
least service is next. A share that had nothing waiting starts again at the virtual time, which is
the service of the share that last got a row, or at the least service of those that wait if that is
less: idle time saves up no credit, and debt stays.

Source: Sheng et al., "Fairness in Serving Large Language Models" (virtual token counter).
"""

from collections import Counter, defaultdict

from runtime.scheduler.start_rate import StartRate
from runtime.share import ADDRESS_MARK, Share, ShareState

__all__ = ["FairShares"]

# Shares that are remembered without a waiting request. Where there are more, debt is forgotten.
MOST_REMEMBERED = 4096


class FairShares:
    """Service, rows and waiting requests of each share. All replicas of a scheduler share it.

    stops  how often a request has given up its row
    rate   at which requests have got rows
    """

    def __init__(self) -> None:
        self.stops = 0
        self.rate = StartRate()
        self._service: dict[str, float] = {}
        self._waiting = Counter[str]()
        self._running = Counter[str]()
        self._virtual = 0.0
        self._started = Counter[str]()
        self._wait_s = defaultdict[str, float](float)

    def service(self, share: Share) -> float:
        """Return the weighted tokens of a share: the one with fewest is next."""
        return self._service.get(share.name, self._virtual)

    def waiting(self, share: Share) -> int:
        """Return how many of its requests wait."""
        return self._waiting[share.name]

    def running(self, share: Share) -> int:
        """Return how many of its requests hold a row."""
        return self._running[share.name]

    def has_room(self, share: Share) -> bool:
        """Return whether another of its requests may hold a row."""
        return share.max_running is None or self.running(share) < share.max_running

    def enter(self, share: Share) -> None:
        """Note that a request begins to wait."""
        if not self._waiting[share.name]:
            # A share that waits behind a higher priority is not ahead of newcomers for that.
            floor = min([self._virtual, *(self._service[name] for name in self._waiting)])
            self._service[share.name] = max(self._service.get(share.name, floor), floor)
        self._waiting[share.name] += 1

    def leave(self, share: Share) -> None:
        """Note that a request waits no longer."""
        _take(self._waiting, share.name)
        if len(self._service) > MOST_REMEMBERED + len(self._waiting):
            self._forget()

    def start(self, share: Share, tokens: int) -> None:
        """Note that a request got a row, where `tokens` of its prompt are to be computed."""
        self._running[share.name] += 1
        self._virtual = max(self._virtual, self.service(share))
        self.charge(share, tokens)

    def stop(self, share: Share) -> None:
        """Note that a request gave up its row."""
        self.stops += 1
        _take(self._running, share.name)

    def charge(self, share: Share, tokens: int) -> None:
        """Add tokens to the service of a share."""
        self._service[share.name] = self.service(share) + tokens / share.weight

    def waited(self, share: Share, seconds: float) -> None:
        """Note how long a request waited for its first row."""
        label = _label(share.name)
        self._started[label] += 1
        self._wait_s[label] += seconds

    def told(self) -> dict[str, ShareState]:
        """Return what has become of requests by name; those of all addresses are added up."""
        waiting, running = dict(self._waiting), dict(self._running)  # the loop goes on meanwhile
        counts = {label: [0, 0] for label in dict(self._started)}
        for k, part in enumerate((waiting, running)):
            for name, count in part.items():
                counts.setdefault(_label(name), [0, 0])[k] += count
        return {
            label: ShareState(
                count[0], count[1], self._started[label], self._wait_s.get(label, 0.0)
            )
            for label, count in counts.items()
        }

    def _forget(self) -> None:
        """Keep the shares that wait, and of the others those that are deepest in debt."""
        idle = [name for name in self._service if not self._waiting[name]]
        idle.sort(key=self._service.__getitem__)
        for name in idle[: -(MOST_REMEMBERED // 2)]:
            del self._service[name]


def _label(name: str) -> str:
    """Return what a share goes by in metrics, which are open to all."""
    return ADDRESS_MARK if name.startswith(ADDRESS_MARK) else name


def _take(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if counts[name] <= 0:
        del counts[name]
