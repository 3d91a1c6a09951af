"""A step on its way, from its plan to its result, and which steps may be in flight.

    turn     plan N+1    launch N+1    settle N    reply
    device   ...   step N   ][   step N+1   ...                without a pause between the two

A step is left in flight when its turn ends, sampled but not settled: the next one is fed with its
tokens (`StepPlan.feed`) before the host knows them. It is sampled when it is launched, unless what
its rows may say hangs on tokens that the host must hear of first (`SampleState.reads_output`): then
it is sampled when the step before it is settled, and the masks that come of that are there, which
has the whole forward pass to happen in:

    turn     plan N+1    launch N+1    settle N    masks    sample N+1    reply
    device   ...   step N   ][   step N+1   ...                       ][ tokens

A row whose mask is later than the logits is held: it sits out, and is sampled from them later. Only
a step whose logits serve somebody else besides is settled in the turn that launched it: requests
that wait with the same prompt, which may be admitted meanwhile, or log-probabilities of prompts.

A prefill step may take long. The next one is planned no sooner than the device is halfway through
it (`StepHandle.halfway`), so that whoever comes until then takes part; half of a step takes longer
than the host does to launch one.

A step is planned as if no row of the one in flight ended, not even for its length. In one that did
end, the token sampled is dropped, but the token fed was the answer's last one: with it, tree and
resume point have the whole answer, and the next turn computes nothing but what is new. Where the
next step is of chunks, it feeds that token beside them (`with_closing`). Tree and point are told so
when the end is known, while the step may still run (`Residency.release`): steps and copies run in
the order of their launches, so that whoever reads what it wrote comes after it, as does whoever is
given what the row gave back.
"""

from dataclasses import dataclass, field

import numpy as np

from runtime.executor.step_plan import HeldRow, StepHandle, StepPlan
from runtime.scheduler.request import Request


@dataclass(slots=True, eq=False)
class Step:
    """One step.

    requests    of the rows, in order; some may have ended since the step was planned. Rows of the
                plan that come after these feed a token, and nothing is told of them
    rows        [n] int64 their lines in the request table then
    decoding    how many of them decode; the rest, which come after them, are chunks of prompts
    twins       waiting requests that are sampled from a row's logits, after the rows' own entries
    flies       the next step may be launched before this one is settled
    reads       some row reads its output: the step before is settled before this one is sampled
    held        what rows are sampled from later, by their entries
    handle      once launched
    launched_s  when that was
    """

    plan: StepPlan
    requests: list[Request]
    rows: np.ndarray
    decoding: int
    twins: list[Request] = field(default_factory=list[Request])
    flies: bool = False
    reads: bool = False
    held: dict[int, HeldRow] = field(default_factory=dict[int, HeldRow])
    handle: StepHandle | None = None
    launched_s: float = 0.0

    @property
    def joining(self) -> list[Request]:
        """The requests whose first token comes with this step, and who go on after it."""
        if self.decoding == len(self.requests):
            return []
        first = [self.requests[row] for row in self._sampled_rows if row >= self.decoding]
        return [request for request in first if request.has_more]

    def sample(self) -> None:
        """Have a launched step sampled; rows that decode and lack a mask are held."""
        assert self.handle is not None
        self.held = self.handle.sample()

    @property
    def entries(self) -> dict[int, int]:
        """Where the token of each sampled row is in the result, by request id."""
        return {self.requests[row].id: k for k, row in enumerate(self._sampled_rows)}

    @property
    def _sampled_rows(self) -> list[int]:
        sampled = self.plan.sampled
        rows: list[int] = sampled[: len(sampled) - len(self.twins)].tolist()
        return rows
