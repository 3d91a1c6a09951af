"""How long a request takes at each stage of its life, and where the loop is."""

from dataclasses import dataclass


class RequestTimes:
    """Durations in seconds, from clock readings that come in order.

    queue_s    without a row, before the first token; whoever was retracted then waits again
    prefill_s  with a row, until the prompt is computed
    decode_s   from then to the end
    chunks     of a traced request: how far each chunk of its prompt went, and the seconds from its
               arrival until that was computed
    """

    __slots__ = (
        *("_arrival_s", "_computed_s", "_since_s", "_traced"),
        *("chunks", "decode_s", "prefill_s", "queue_s"),
    )

    def __init__(self, arrival_s: float, *, traced: bool = False) -> None:
        self._arrival_s = self._since_s = arrival_s
        self._traced = traced
        self.chunks: list[tuple[int, float]] = []
        self._computed_s: float | None = None
        self.queue_s = self.prefill_s = self.decode_s = 0.0

    def admitted(self, now_s: float) -> None:
        """Note that the request got a row, or was given its first token without one."""
        if self._computed_s is None:
            self.queue_s += now_s - self._since_s

    def queued(self, now_s: float) -> None:
        """Note that it lost its row."""
        self._since_s = now_s

    def chunk(self, end: int, now_s: float) -> None:
        """Note that the prompt is computed up to `end`."""
        if self._traced and self._computed_s is None:
            self.chunks.append((end, now_s - self._arrival_s))

    def computed(self, now_s: float) -> None:
        """Note that its prompt is computed; the first time counts."""
        if self._computed_s is None:
            self._computed_s = now_s
            self.prefill_s = now_s - self._arrival_s - self.queue_s

    def ended(self, now_s: float) -> None:
        """Note the end."""
        if self._computed_s is not None:
            self.decode_s = now_s - self._computed_s


@dataclass(slots=True)
class LoopTimes:
    """Where the loop is, on the scheduler's clock; written by the loop, read by any thread.

    turned_s        when it last turned, or had the result of a step
    step_started_s  since when it has waited for a step; None: it waits for none
    """

    turned_s: float
    step_started_s: float | None = None
