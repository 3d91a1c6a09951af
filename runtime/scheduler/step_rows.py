"""Rows of a step while it is planned: each is a request's next tokens, however many.

A step may have rows of all kinds. A prompt of which only the last token is left joins the rows that
decode: it is one token, as they are, and so waits for no turn of its own, and holds up nobody. The
last token of an answer, which nobody waits for, is fed beside the chunks of a prompt, if that is
what comes next: whoever goes on from the answer finds all of it in the cache.
"""

from dataclasses import dataclass, field

import numpy as np

from runtime.scheduler.pending_points import Save
from runtime.scheduler.request import Request
from runtime.wire.step import PromptSpan

__all__ = ["StepRows"]


@dataclass(frozen=True, slots=True)
class StepRows:
    """n rows of T tokens.

    requests     [n], one a row
    line         [n] int64 of the request table
    start        [n] int64 position of each row's first token
    count        [n] int64 tokens
    ids          [T] int32; 0 for one that only the executor has
    from_device  [n] bool whether the row's token is the one that the executor sampled last for it
    window_from  [n] int64, and
    write_from   [n] int64, as in `runtime.wire.step.Rows`
    saves        row and snapshot, beside the rows' own ends
    sampled      [s] int64 rows whose next token is sampled
    twins        row, and a waiting request with the same prompt that is sampled from its logits
    spans        log-probabilities of prompts
    """

    requests: list[Request]
    line: np.ndarray
    start: np.ndarray
    count: np.ndarray
    ids: np.ndarray
    from_device: np.ndarray
    window_from: np.ndarray
    write_from: np.ndarray
    sampled: np.ndarray
    saves: list[tuple[int, Save]] = field(default_factory=list[tuple[int, Save]])
    twins: list[tuple[int, Request]] = field(default_factory=list[tuple[int, Request]])
    spans: list[PromptSpan] = field(default_factory=list[PromptSpan])

    def followed_by(self, other: "StepRows") -> "StepRows":
        """Return these rows, then others that have no twins and no spans."""
        assert not other.twins
        assert not other.spans
        n = len(self.line)

        def both(name: str) -> np.ndarray:
            return np.concatenate((getattr(self, name), getattr(other, name)))

        return StepRows(
            [*self.requests, *other.requests],
            line=both("line"),
            start=both("start"),
            count=both("count"),
            ids=both("ids"),
            from_device=both("from_device"),
            window_from=both("window_from"),
            write_from=both("write_from"),
            sampled=np.concatenate((self.sampled, other.sampled + n)),
            saves=self.saves + [(row + n, save) for row, save in other.saves],
            twins=self.twins,
            spans=self.spans,
        )

    @property
    def end(self) -> np.ndarray:
        """[n] int64 position behind each row's last token."""
        return self.start + self.count

    @property
    def is_constrained(self) -> bool:
        """Whether any token that is sampled follows a grammar."""
        requests = self.requests
        return any(requests[row].constraint is not None for row in self.sampled.tolist()) or any(
            twin.constraint is not None for _, twin in self.twins
        )
