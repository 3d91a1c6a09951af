"""The phases of a training: one table."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.train.attention import Mode

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
    """

    name: str
    length: int
    batch: int
    micro: int
    steps: int
    mode: Mode
    rate: float = 1.0
    text_weight: float = 0.1

    @property
    def rows(self) -> int:
        """Rows a step."""
        return self.batch // self.length


_SPARSE = Mode(select=True, train_indexer=True)
_SERVED = replace(_SPARSE, round_weights=True, round_records=True)
_BATCH = 1 << 16

PHASES = (
    Phase("short", 512, _BATCH, _BATCH, 1200, Mode(train_indexer=True)),
    Phase("medium", 2048, _BATCH, _BATCH, 900, Mode(train_indexer=True)),
    Phase("sparse", 2048, _BATCH, _BATCH, 700, _SPARSE),
    Phase("long", 8192, _BATCH, _BATCH, 700, _SERVED),
    Phase("longest", 16384, _BATCH, _BATCH, 700, _SERVED),
)


def scaled(phases: Sequence[Phase], factor: float) -> list[Phase]:
    """Return the phases with `factor` times the steps, at least one each."""
    return [replace(phase, steps=max(1, round(phase.steps * factor))) for phase in phases]


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
    total = sum(phase.steps for phase in phases)
    warm = min(WARM_UP_STEPS, max(1, total // 10))
    rise = min(1.0, (step + 1) / warm)
    if since_lost is not None:
        rise = min(rise, (since_lost + 1) / REWARM_STEPS)
    way = min(1.0, max(0.0, (step - warm) / max(1, total - warm)))
    fall = LEAST_RATE + (1.0 - LEAST_RATE) * 0.5 * (1.0 + math.cos(math.pi * way))
    return rise * fall * phases[phase_at(phases, step)[0]].rate
