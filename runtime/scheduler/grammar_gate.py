"""Which requests may be sampled now: those whose grammars have said what may come next.

The masks are made in other processes while the loop does other things. A step waits for them for
`PATIENCE_S` at most, usually a tenth of that, and then runs without the rows that lack one; a
grammar that is late too often is not waited for at all. So free requests lose next to nothing to
a grammar, whatever it is, and with no grammar about none of this code runs.
"""

import time
from typing import Protocol

from runtime.grammar.output import GrammarOutput
from runtime.messages import Grammar
from runtime.scheduler.decode import DecodeSet
from runtime.scheduler.queue import WaitingQueue
from runtime.scheduler.request import Request

PATIENCE_S = 0.002
# With nothing else to do: how long until messages are looked for again.
IDLE_S = 0.005


class Grammars(Protocol):
    """What makes masks: `runtime.grammar.pool.GrammarPool`, or a stand-in."""

    @property
    def active(self) -> bool:
        """Whether there is any output."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that only a complete output may go on with."""
        ...

    def open(self, request_id: int, grammar: Grammar) -> GrammarOutput:
        """Return a new output."""
        ...

    def close(self, output: GrammarOutput) -> None:
        """Forget an output."""
        ...

    def poll(self, timeout_s: float = 0.0) -> list[GrammarOutput]:
        """Take in masks; return outputs that have failed."""
        ...


class GrammarGate:
    """Keeps requests whose mask is not there out of admission and out of decode steps.

    let_in  whether the last `hear` brought the first mask of a waiting request
    """

    def __init__(
        self, grammars: Grammars | None, waiting: WaitingQueue, decoding: DecodeSet
    ) -> None:
        self._grammars = grammars
        self._waiting = waiting
        self._decoding = decoding
        self.let_in = False

    @property
    def is_there(self) -> bool:
        """Whether requests with grammars can be served."""
        return self._grammars is not None

    @property
    def active(self) -> bool:
        """Whether any request has a grammar."""
        return self._grammars is not None and self._grammars.active

    def open(self, request: Request) -> None:
        """Have a new request follow its grammar, if it has one."""
        grammar = request.sample.sampling.grammar
        if grammar is not None and request.sample.sampling.max_new_tokens > 0:
            assert self._grammars is not None
            request.constrain(self._grammars.open(request.id, grammar))

    def close(self, request: Request) -> None:
        """Forget the grammar of a request that ends, if it has one."""
        if request.constraint is not None and self._grammars is not None:
            self._grammars.close(request.constraint)

    def completes(self, request: Request, token: int) -> bool:
        """Say whether this sampled token ends an output that follows a grammar."""
        if request.constraint is None or self._grammars is None:
            return False
        return token in self._grammars.end_ids

    def hear(self, *, prefilling: bool) -> list[GrammarOutput]:
        """Take in masks and pause the rows that lack one; return outputs that have failed.

        prefilling  whether a prefill could run now
        """
        assert self._grammars is not None
        expected = [r for r in self._waiting if not r.is_ready]
        late = [r for r in self._decoding.requests if not r.is_ready]
        others = prefilling or len(late) < len(self._decoding)
        idle = not others and len(expected) == len(self._waiting)
        failed = self._grammars.poll(IDLE_S if idle else 0.0)
        awaited = [r for r in late if r.constraint is not None and r.constraint.prompt]
        if awaited:
            failed += self._wait_for(awaited)
        if others:
            for request in awaited:
                if request.constraint is not None and request.constraint.pending:
                    request.constraint.was_late()
        paused = frozenset(r.id for r in late if not r.is_ready)
        self._decoding.pause(paused)
        self.let_in = any(r.is_ready for r in expected)
        return failed

    def _wait_for(self, awaited: list[Request]) -> list[GrammarOutput]:
        assert self._grammars is not None
        failed: list[GrammarOutput] = []
        deadline = time.monotonic() + PATIENCE_S
        while any(not r.is_ready for r in awaited):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            failed += self._grammars.poll(left)
        return failed
