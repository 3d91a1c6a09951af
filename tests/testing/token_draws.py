"""What a token runner samples from, and what it picked."""

from dataclasses import dataclass, field

import numpy as np

from runtime.wire.arrays import INT32, packed
from runtime.wire.step import EntryLogprobs, LineSampling


@dataclass(slots=True)
class SampledRow:
    """A row that is sampled: `logits` is its last hash.

    output  tokens that were sampled for the line so far
    """

    line: int
    logits: np.uint64
    position: int
    state: LineSampling
    output: list[int]
    mask: np.ndarray | None


@dataclass(slots=True)
class Drawn:
    """What was picked for some rows."""

    tokens: list[int] = field(default_factory=list[int])
    failed: dict[int, str] = field(default_factory=dict[int, str])
    logprobs: list[EntryLogprobs] = field(default_factory=list[EntryLogprobs])

    def accepted(self, entries: list[int], count: int) -> bytes:
        """Return how many tokens each of `count` entries has; `entries` were sampled."""
        each = np.zeros(count)
        each[[e for k, e in enumerate(entries) if k not in self.failed]] = 1
        return packed(each, INT32)

    @property
    def usable(self) -> bytes:
        """The tokens of those that did not fail."""
        return packed([t for k, t in enumerate(self.tokens) if k not in self.failed], INT32)
