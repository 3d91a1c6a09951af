"""Grammars beside the steps: their masks are made in other processes while a forward pass runs.

A step takes along every row that decodes. What its grammar allows a row to say is needed only when
the logits are sampled, so that the masks have the whole forward pass to come in; a step is never
held up for one that is later still. Such a row is held: its logits are kept, it sits out, and it
is sampled from them and goes on when its mask is there. So free requests lose nothing to a grammar,
whatever it is, and with no grammar about none of this code runs.

Only a request whose grammar is not compiled yet waits outside, in the queue.
"""

from collections.abc import Sequence
from typing import Protocol

from runtime.durations import Durations
from runtime.executor.interface import StepHandle
from runtime.grammar.output import GrammarOutput
from runtime.messages import Grammar
from runtime.scheduler.request import Request
from runtime.scheduler.request_sets import RequestSets

# How often the forward pass is asked whether it is over, while masks are awaited.
LOOK_S = 0.0005
# With nothing else to do: how long until messages are looked for again.
IDLE_S = 0.005


class Grammars(Protocol):
    """What makes masks: `runtime.grammar.pool.GrammarPool`, or what a test puts there."""

    @property
    def active(self) -> bool:
        """Whether there is any output."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that only a complete output may go on with."""
        ...

    @property
    def compilations(self) -> Durations:
        """How long compiling took, for each grammar that was compiled."""
        ...

    def open(self, request_id: int, grammar: Grammar) -> GrammarOutput:
        """Return a new output."""
        ...

    def close(self, output: GrammarOutput) -> None:
        """Forget an output."""
        ...

    def flush(self) -> None:
        """Send the tokens that outputs have taken."""
        ...

    def poll(self, timeout_s: float = 0.0) -> list[GrammarOutput]:
        """Take in masks; return outputs that have failed."""
        ...


class GrammarGate:
    """Brings masks in, and keeps requests whose grammar is not compiled out of admission.

    let_in  whether the first mask of a waiting request came since the `hear` before the last
    """

    def __init__(self, grammars: Grammars | None, sets: RequestSets) -> None:
        self._grammars = grammars
        self._waiting = sets.waiting
        self._decoding = sets.decoding
        self._failed: list[GrammarOutput] = []
        # Masks of these may come while a step is gathered, too.
        self._expected: list[Request] = []
        self.let_in = False

    @property
    def active(self) -> bool:
        """Whether any request has a grammar."""
        return self._grammars is not None and (self._grammars.active or bool(self._failed))

    @property
    def queued(self) -> int:
        """Requests that wait for their grammar to be compiled."""
        return sum(not request.is_ready for request in self._waiting) if self.active else 0

    def open(self, request: Request) -> None:
        """Have a new request follow its grammar, if it has one."""
        grammar = request.sampling.grammar
        if grammar is not None and request.sampling.max_new_tokens > 0:
            assert self._grammars is not None
            request.constrain(self._grammars.open(request.id, grammar))

    def close(self, request: Request) -> None:
        """Forget the grammar of a request that ends, if it has one."""
        if request.constraint is not None and self._grammars is not None:
            self._grammars.close(request.constraint)
            self._failed = [output for output in self._failed if output is not request.constraint]
            self._expected = [other for other in self._expected if other is not request]

    def completes(self, request: Request, token: int) -> bool:
        """Say whether this sampled token ends an output that follows a grammar.

        One whose grammar has not begun ends, if it may, as any other does.
        """
        constraint = request.constraint
        if constraint is None or not constraint.begun or self._grammars is None:
            return False
        return token in self._grammars.end_ids

    def tell(self) -> None:
        """Have the masks made that tokens just settled ask for."""
        if self._grammars is not None and self._grammars.active:
            self._grammars.flush()

    def hear(self, *, at_work: bool) -> list[GrammarOutput]:
        """Take in masks between two steps; return outputs that have failed.

        at_work  whether a prefill could run now, or a step is in flight
        """
        assert self._grammars is not None
        expected = [r for r in self._waiting if not r.is_ready]
        busy = at_work or self._decoding.active or len(expected) < len(self._waiting)
        failed, self._failed = self._failed, []
        failed += self._grammars.poll(0.0 if busy or failed else IDLE_S)
        self.let_in = any(r.is_ready for r in (*self._expected, *expected))
        self._expected = [r for r in expected if not r.is_ready]
        return failed

    def gather(self, requests: Sequence[Request], step: StepHandle) -> None:
        """Take in masks of a step's rows for as long as its forward pass goes on.

        Outputs that fail meanwhile are told by the next `hear`: their rows are in the step.
        """
        assert self._grammars is not None
        late = [r for r in requests if not r.is_ready]
        while late:
            # Asked before the poll: what has come by the end of the pass is in time.
            over = step.forwarded
            self._failed += self._grammars.poll(0.0 if over else LOOK_S)
            still = [r for r in late if not r.is_ready]
            if over and len(still) == len(late):
                return
            late = still
