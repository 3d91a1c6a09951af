"""All outcomes of an evaluation, and the groups that are reported."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.evaluate.conditions import Outcome
from tests.evaluate.tally import Share, share
from tests.evaluate.variants import DEFAULT

_NEAR_TOKENS = 2048


@dataclass(slots=True)
class Results:
    """Outcomes in the order in which they came; a run is a variant under a condition."""

    outcomes: list[Outcome] = field(default_factory=list)

    def runs(self) -> list[tuple[str, str]]:
        """Return (variant, condition) of each run, the one that others are compared with first."""
        told = dict.fromkeys((one.variant, one.condition) for one in self.outcomes)
        return sorted(told, key=lambda run: run != (DEFAULT, "cold"))

    def of(self, variant: str, condition: str) -> list[Outcome]:
        """Return the outcomes of a run."""
        run = (variant, condition)
        return [one for one in self.outcomes if (one.variant, one.condition) == run]

    def base(self) -> list[Outcome]:
        """Return the outcomes of the default server with a cold cache."""
        return self.of(DEFAULT, "cold")

    def goals(self) -> Iterator[tuple[str, float, Share]]:
        """Yield name, wanted share and share reached, of what the default model is to do.

        Named as in `tests.train.model_card`; only what was asked is there.
        """
        cold = self.base()
        facts = [one for one in cold if one.case.task == "facts" and one.case.distance]
        near = [one for one in facts if (one.case.distance or 0) <= _NEAR_TOKENS]
        json_tasks = ("json_format", "json_schema")
        wanted = (
            ("facts_2k", 0.95, [one.verdict.right for one in near]),
            ("facts_8k", 0.90, [o.verdict.right for o in facts if o.case.distance == 8192]),
            ("facts_16k", 0.60, [o.verdict.right for o in facts if o.case.distance == 16384]),
            ("tool_calls", 0.95, [o.verdict.right for o in cold if o.case.row == "tool_calls"]),
            ("json", 0.95, [o.verdict.right for o in cold if o.case.row in json_tasks]),
            ("stops", 0.99, [one.verdict.stopped for one in cold]),
        )
        yield from ((name, goal, share(flags)) for name, goal, flags in wanted if flags)
