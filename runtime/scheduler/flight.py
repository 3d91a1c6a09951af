"""A step on its way, from its plan to its result, and which steps may be in flight.

    turn     plan N+1    launch N+1    settle N    reply
    device   ...   step N   ][   step N+1   ...                without a pause between the two

A step is left in flight when its turn ends if it sampled ahead (`StepPlan.sample_ahead`): the next
one is fed with its tokens (`StepPlan.feed`) before the host knows them. Any other step is settled
in the turn that launched it, and the next one is planned from what it told. A step samples ahead if
the host has no part in it between its logits and the tokens that the next one reads:

- no row that is sampled needs the host (`SampleState.needs_host`). That turns from no to yes only
  where a grammar begins, which the host hears of when the next step is launched: the row is kept of
  that one (`keep_begun`), its token dropped, and it sits out until it is sampled with its mask;
- its logits serve nobody else: no requests that wait with the same prompt, which may be admitted
  meanwhile, and no log-probabilities of prompts.

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
    kept        what rows whose tokens do not count are sampled from later, by their entries
    handle      once launched
    launched_s  when that was
    """

    plan: StepPlan
    requests: list[Request]
    rows: np.ndarray
    decoding: int
    twins: list[Request] = field(default_factory=list[Request])
    kept: dict[int, HeldRow] = field(default_factory=dict[int, HeldRow])
    handle: StepHandle | None = None
    launched_s: float = 0.0

    @property
    def joining(self) -> list[Request]:
        """The requests whose first token comes with this step, and who go on after it."""
        if self.decoding == len(self.requests):
            return []
        first = [self.requests[row] for row in self._sampled_rows if row >= self.decoding]
        return [request for request in first if request.has_more]

    def keep_begun(self) -> None:
        """Keep the rows that need the host now, though they did not when this step was planned.

        To be called of a launched step that samples ahead, once the one before it is settled.
        """
        assert self.handle is not None
        for k, sample in enumerate(self.plan.samples):
            if sample.needs_host:
                request = self.requests[int(self.plan.sampled[k])]
                request.held = self.kept[k] = self.handle.keep(k)

    @property
    def entries(self) -> dict[int, int]:
        """Where the token of each sampled row is in the result, by request id."""
        return {self.requests[row].id: k for k, row in enumerate(self._sampled_rows)}

    @property
    def _sampled_rows(self) -> list[int]:
        sampled = self.plan.sampled
        rows: list[int] = sampled[: len(sampled) - len(self.twins)].tolist()
        return rows
