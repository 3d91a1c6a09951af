"""One output that follows a grammar, as the scheduler holds it: what it may go on with next."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

# A mask that was late this often, or this seldom, is still waited for.
_LATE_ALLOWED = 8
_TOKENS_PER_LATE = 64


@dataclass(slots=True, eq=False)
class GrammarOutput:
    """The state of one request's grammar; it outlives rows, so that retraction costs nothing.

    request_id  whose output it is
    after       token after which the grammar begins, None once it has begun
    free        mask before that: everything but the model's end tokens
    accept      tells the grammar's process of a token
    allowed     tokens that may come next, packed; None while that is being found out
    failure     why there can be no more, once there cannot
    """

    request_id: int
    after: int | None
    free: np.ndarray
    accept: Callable[[int], None]
    allowed: np.ndarray | None = None
    failure: str | None = None
    _first: np.ndarray | None = field(default=None)
    _tokens: int = 0
    _late: int = 0

    @property
    def pending(self) -> bool:
        """Whether the next token cannot be sampled yet."""
        return self.allowed is None

    @property
    def prompt(self) -> bool:
        """Whether its masks have come in time, so that a step may wait a moment for the next."""
        return self._late <= _LATE_ALLOWED + self._tokens // _TOKENS_PER_LATE

    def was_late(self) -> None:
        """Note that a step was held up for the mask, and went on without it."""
        self._late += 1

    def take(self, token: int) -> None:
        """Go on with a sampled token that does not end the request."""
        self._tokens += 1
        if self.after is None:
            self.allowed = None
            self.accept(token)
        elif token == self.after:
            self.after, self.allowed = None, self._first

    def mask(self, bits: np.ndarray) -> None:
        """Take the next mask; the first one is kept for when the grammar begins."""
        if self.after is None:
            self.allowed = bits
        else:
            self._first, self.allowed = bits, self.free
