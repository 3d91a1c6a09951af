"""The phases of a training: one table.

What blocks of 128 tokens carry is only learnt where nothing else carries it: a sample of blocks of
4 answers almost everything, each of them having read the window before it. So from the beginning
some steps are of votes alone (`tests.train.tasks.votes`), whose every token counts the same, and
are read without blocks of 4. In all other steps, votes among them, every path is open: what blocks
of 128 answer by then, blocks of 4 have no reason to learn.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.train.mode import Mode

WARM_UP_STEPS = 100
# After moments were lost: a short ramp until there are new ones.
REWARM_STEPS = 20
LEAST_RATE = 0.05


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the run.

    name         for the log
    length       tokens a row
    batch        tokens a step
    micro        tokens of a step at most that are on the device at once
    steps        how many
    rate         factor on the run's learning rate
    text_weight  loss weight of tokens that the assistant does not write
    whole_every  one step in so many is of votes alone, without blocks of 4; 0: none
    """

    name: str
    length: int
    batch: int
    micro: int
    steps: int
    mode: Mode
    rate: float = 1.0
    text_weight: float = 0.1
    whole_every: int = 0

    def is_whole(self, step: int) -> bool:
        """Say whether step number `step` of the run is of votes alone."""
        return is_whole(step, self.whole_every)

    def mode_at(self, step: int) -> Mode:
        """Return how the network is run in step number `step` of the run."""
        return replace(self.mode, hidden=(4,)) if self.is_whole(step) else self.mode

    @property
    def rows(self) -> int:
        """Rows a step."""
        return self.batch // self.length


_SPARSE = Mode(select=True, train_indexer=True)
_SERVED = replace(_SPARSE, round_weights=True, round_records=True)
_BATCH = 1 << 16

PHASES = (
    Phase("short", 512, _BATCH, _BATCH, 1400, Mode(train_indexer=True), whole_every=4),
    Phase("medium", 2048, _BATCH, _BATCH, 900, Mode(train_indexer=True), whole_every=5),
    Phase("sparse", 2048, _BATCH, _BATCH, 800, _SPARSE, whole_every=5),
    Phase("long", 8192, _BATCH, _BATCH, 1000, _SERVED, whole_every=6),
    Phase("longest", 16384, _BATCH, _BATCH, 1000, _SERVED, whole_every=6),
)


def is_whole(step: int, every: int) -> bool:
    """Say whether a step is the last one of `every`; never if that is 0."""
    return every > 0 and step % every == every - 1


def scaled(phases: Sequence[Phase], factor: float, *, done: int = 0) -> list[Phase]:
    """Return the phases with `factor` times the steps, at least one each.

    done  steps done before: phases that end there or earlier stay as they are
    """
    result: list[Phase] = []
    ends = 0
    for phase in phases:
        ends += phase.steps
        steps = phase.steps if ends <= done else max(1, round(phase.steps * factor))
        result.append(replace(phase, steps=steps))
    return result


def first_step(phases: Sequence[Phase], name: str) -> int:
    """Return the number of the first step of the phase `name`. Raises KeyError without one."""
    step = 0
    for phase in phases:
        if phase.name == name:
            return step
        step += phase.steps
    raise KeyError(name)


def phase_at(phases: Sequence[Phase], step: int) -> tuple[int, int]:
    """Return (number of the phase that `step` belongs to, steps of it before).

    Raises IndexError past the end.
    """
    for number, phase in enumerate(phases):
        if step < phase.steps:
            return number, step
        step -= phase.steps
    raise IndexError("the run has fewer steps")


def rate_at(phases: Sequence[Phase], step: int, *, since_lost: int | None = None) -> float:
    """Return the factor on the learning rate: warm-up, then a cosine over all phases.

    since_lost  steps since the run went on without its moments
    """
    number, _ = phase_at(phases, step)
    total = sum(phase.steps for phase in phases)
    warm = min(WARM_UP_STEPS, max(1, total // 10))
    rise = min(1.0, (step + 1) / warm)
    if since_lost is not None:
        rise = min(rise, (since_lost + 1) / REWARM_STEPS)
    way = min(1.0, max(0.0, (step - warm) / max(1, total - warm)))
    fall = LEAST_RATE + (1.0 - LEAST_RATE) * 0.5 * (1.0 + math.cos(math.pi * way))
    return rise * fall * phases[number].rate
