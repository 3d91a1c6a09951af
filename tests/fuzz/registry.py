"""All targets by name."""

from tests.fuzz.answers import ANSWERS
from tests.fuzz.checkpoints import TARGETS as CHECKPOINTS
from tests.fuzz.heads import EVENT_LINES, HEADS
from tests.fuzz.messages import MESSAGES, RANK_LINES
from tests.fuzz.target import Target

__all__ = ["TARGETS"]

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (MESSAGES, RANK_LINES, HEADS, EVENT_LINES, ANSWERS, *CHECKPOINTS)
}
