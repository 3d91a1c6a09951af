"""One output that follows a grammar, as the scheduler holds it: what it may go on with next."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


@dataclass(slots=True, eq=False)
class GrammarOutput:
    """The state of one request's grammar; it outlives rows, so that retraction costs nothing.

    request_id  whose output it is
    after       token after which the grammar begins, None once it has begun
    free        mask before that: everything but what is barred, and the model's end tokens unless
                the output may end before
    accept      tells the grammar's process of a token
    allowed     tokens that may come next, packed; None while that is being found out
    failure     why there can be no more, once there cannot
    opened_s    clock reading when it was made
    compile_s   seconds from then until its grammar was compiled; 0 if it was before
    """

    request_id: int
    after: int | None
    free: np.ndarray
    accept: Callable[[int], None]
    allowed: np.ndarray | None = None
    failure: str | None = None
    opened_s: float = 0.0
    compile_s: float = 0.0
    _first: np.ndarray | None = field(default=None)

    @property
    def begun(self) -> bool:
        """Whether the grammar has begun; before, `allowed` is `free` once it is known."""
        return self.after is None

    def take(self, token: int) -> None:
        """Go on with a sampled token that does not end the request."""
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
