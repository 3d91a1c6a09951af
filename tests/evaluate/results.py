"""All outcomes of an evaluation, the groups that are reported, and which server gave them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.evaluate.closeness import Noise, measure_noise
from tests.evaluate.conditions import Outcome
from tests.evaluate.tally import Paired, Share, compare, compare_rows, share
from tests.evaluate.variants import DEFAULT, NO_CACHE

_NEAR_TOKENS = 2048


@dataclass(slots=True)
class Results:
    """Outcomes in the order in which they came; a run is a variant under a condition.

    facts     what the default server told of itself
    left_out  variants that were not asked, and why
    """

    outcomes: list[Outcome] = field(default_factory=list)
    facts: Mapping[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def device(self) -> str:
        """What the default server computed on: "cpu" or "cuda"."""
        return str(self.facts.get("device", "cpu"))

    @property
    def exact(self) -> bool:
        """Whether the default server promises the same bits in any state of the cache."""
        return self.device == "cpu" or bool(self.facts.get("deterministic"))

    def server(self) -> str:
        """Return the default server's device and arithmetic in words."""
        facts = self.facts
        words = [str(facts.get("device_name") or self.device), str(facts.get("dtype", ""))]
        words.append(f"KV {facts['record_format']}" if "record_format" in facts else "")
        words.append("the same bits in any state of the cache" if self.exact else "")
        return ", ".join(word for word in words if word)

    def noise(self) -> Noise | None:
        """Return what arithmetic alone changes, None where no server without a cache was asked."""
        other = {one.case.key: one.answer for one in self.of(NO_CACHE, "cold")}
        return measure_noise(
            (one.answer, other[one.case.key]) for one in self.base() if one.case.key in other
        )

    @property
    def margin(self) -> float:
        """How close, in nats, a choice must be to be excused; 0 where nothing is."""
        noise = None if self.exact else self.noise()
        return 0.0 if noise is None else noise.most

    def paired(self, variant: str, condition: str) -> Paired:
        """Compare a run with the default server's cold one."""
        return compare(self.base(), self.of(variant, condition), margin=self.margin)

    def paired_rows(self, variant: str) -> dict[str, Paired]:
        """Compare a variant's cold run with the default's, each row of the table apart."""
        return compare_rows(self.base(), self.of(variant, "cold"))

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
