"""Runs lives: of seeds and of scripts."""

import logging
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.simulation.draw import Drawn
from tests.simulation.life import Life
from tests.simulation.script import AnyEvent, Script


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a life went.

    script  what happened in it
    steps   that were launched
    counted by its schedulers
    fault   what was wrong, None if nothing was
    """

    script: Script
    steps: int
    fault: BaseException | None
    counted: Counter[str] = field(default_factory=Counter[str])


def live_seed(seed: int, steps: int) -> Outcome:
    """Live what a seed draws until so many steps were launched, and drain."""
    drawn = Drawn(seed)
    with _quiet():
        life = Life(seed, drawn.world, drawn.expected)

        def events() -> Iterator[AnyEvent]:
            for event in drawn:
                if life.steps >= steps:
                    return
                yield event

        return _run(life, seed, events())


def live_script(script: Script) -> Outcome:
    """Live a script."""
    with _quiet():
        return _run(Life(script.seed, script.world), script.seed, iter(script.events))


@contextmanager
def _quiet() -> Generator[None]:
    """Keep what goes wrong on purpose out of the log."""
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _run(life: Life, seed: int, events: Iterator[AnyEvent]) -> Outcome:
    fault: BaseException | None = None
    try:
        life.run(events)
    except Exception as caught:
        fault = caught
    finally:
        life.close()
    return Outcome(Script(seed, life.world, life.happened), life.steps, fault, life.counted)
