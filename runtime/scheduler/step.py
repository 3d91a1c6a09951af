"""A step on its way, from its plan to its result, and which steps may be in flight.

    turn     plan N+1    launch N+1    settle N    reply
    device   ...   step N   ][   step N+1   ...                without a pause between the two

A step is left in flight when its turn ends, sampled but not settled: the next one is fed with its
tokens, which the executor keeps by line (`Rows.from_device`), before the host knows them. It is
sampled when it is launched, unless tokens of it follow grammars: then it is sampled when the step
before it is settled, and the masks that come of that are there, which has the whole forward pass to
happen in:

    turn     plan N+1    launch N+1    settle N    masks    sample N+1    reply
    device   ...   step N   ][   step N+1   ...                       ][ tokens

A row whose mask is later than the logits is held: they are kept, it sits out, and is sampled from
them later. Only
a step whose logits serve somebody else besides is settled in the turn that launched it: requests
that wait with the same prompt, which may be admitted meanwhile, or log-probabilities of prompts.

A prefill step may take long. The next one is planned no sooner than the device is halfway through
it (`StepHandle.halfway`), so that whoever comes until then takes part; half of a step takes longer
than the host does to launch one.

A step is planned as if no row of the one in flight ended, not even for its length. In one that did
end, the token sampled is dropped, but the token fed was the answer's last one: with it, tree and
resume point have the whole answer, and the next turn computes nothing but what is new. Where the
next step is of chunks, it feeds that token beside them (`StepRows`). Tree and point are told so
when the end is known, while the step may still run (`Residency.release`): steps and copies run in
the order of their launches, so that whoever reads what it wrote comes after it, as does whoever is
given what the row gave back.
"""

from dataclasses import dataclass, field
from enum import Enum

from runtime.executor.interface import StepHandle
from runtime.scheduler.request import Request, Status
from runtime.scheduler.step_rows import StepRows
from runtime.wire.step import StepPlan

__all__ = ["Step", "StepState"]


class StepState(Enum):
    """How far a step has come; each state follows the one before it.

    PLANNED   its rows are chosen, and what they need is theirs
    LAUNCHED  its forward pass is under way, or over
    SAMPLED   its tokens are drawn, or their logits kept
    SETTLED   the scheduler has taken in its result
    """

    PLANNED = 0
    LAUNCHED = 1
    SAMPLED = 2
    SETTLED = 3


@dataclass(slots=True, eq=False)
class Step:
    """One step.

    rows        what it computes
    plan        the same, as the executor is told
    told        how many of its rows somebody is told of; those that come after only feed a token.
                Requests of the rows may have ended since the step was planned
    decoding    how many of the rows decode; the rest, which come after them, are chunks of prompts
    overlaps    the next step may be launched before this one is settled
    constrained tokens follow grammars: the step before is settled before this one is sampled
    held        entries whose logits are kept until their masks are known
    handle      once launched
    launched_s  when that was
    """

    rows: StepRows
    plan: StepPlan
    told: int
    decoding: int
    overlaps: bool = False
    constrained: bool = False
    held: set[int] = field(default_factory=set[int])
    handle: StepHandle | None = None
    state: StepState = StepState.PLANNED
    launched_s: float = 0.0

    def advance(self, state: StepState) -> None:
        """Come to the next state. Raises ValueError for another one."""
        if state.value != self.state.value + 1:
            raise ValueError(f"a step that is {self.state.name} becomes {state.name}")
        self.state = state

    @property
    def requests(self) -> list[Request]:
        """Those of the rows that somebody is told of, in order."""
        return self.rows.requests[: self.told]

    @property
    def joining(self) -> list[Request]:
        """The requests whose first token comes with this step, and who go on after it.

        One that failed with the chunk before does not.
        """
        if self.decoding == self.told:
            return []
        requests = self.rows.requests
        first = [requests[row] for row in self.rows.sampled.tolist() if row >= self.decoding]
        return [r for r in first if r.status is Status.PREFILL and r.has_more]

    @property
    def entries(self) -> dict[int, int]:
        """Where the token of each sampled row is in the result, by request id."""
        requests = self.rows.requests
        return {requests[row].id: k for k, row in enumerate(self.rows.sampled.tolist())}
