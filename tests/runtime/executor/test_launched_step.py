"""What comes of logits: tokens of entries, runs of drafts, kept lines, finite rows, prompts."""

from typing import Any

import numpy as np
import pytest
import torch

from jit_kernels.likeliest import likeliest
from mem_cache.spec import TreeSpec
from runtime.executor.launched_step import LaunchedStep
from runtime.executor.lines import Lines
from runtime.executor.logprobs import top_logprobs
from runtime.executor.plan_rows import PlanRows
from runtime.executor.sampler import Sampler
from runtime.wire.arrays import INT32, UINT8, packed, unpacked
from runtime.wire.step import PromptSpan, Sample, StepPlan, StepResult
from tests.testing.plans import (
    PlannedRow,
    Plans,
    entry_tokens,
    failures,
    line_sampling,
    sample_kept,
)

VOCAB = 40
CPU = torch.device("cpu")
GREEDY = line_sampling()
DRAWN = line_sampling(temperature=1.0, seed=5, top_logprobs=2, logprob_ids=(7,))
WAITS = PlannedRow(0, 9, [1])


class LineRig:
    """Lines without a network: steps are given their logits."""

    def __init__(self, lines: int = 4) -> None:
        self.plans = Plans(TreeSpec(), lines=lines)
        last = torch.zeros(lines, dtype=torch.int64)
        self.lines = Lines(self.plans.tables, Sampler(VOCAB, CPU), last)
        self.rows: list[PlanRows] = []

    def launch(self, plan: StepPlan, logits: torch.Tensor, **given: Any) -> LaunchedStep:
        """Begin a step, and sample it where the plan says how."""
        self.rows.append(self.lines.begin(plan))
        step = LaunchedStep(plan, self.rows[-1], self.lines, logits, **given)
        if plan.sampling is not None:
            step.sample(plan.sampling)
        return step

    def run(self, *rows: PlannedRow, logits: torch.Tensor, **given: Any) -> StepResult:
        """Return what comes of rows; `given` goes into the plan."""
        return self.launch(self.plans.plan(*rows, **given), logits).result()


def saying(*tokens: int) -> torch.Tensor:
    """Return logits whose likeliest tokens are these."""
    logits = torch.zeros((len(tokens), VOCAB))
    logits[torch.arange(len(tokens)), torch.tensor(tokens)] = 9.0
    return logits


def noise(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed))


def finite(result: StepResult) -> list[int]:
    return unpacked(result.finite, UINT8).tolist()


def test_each_entry_gets_what_its_line_wants_of_its_row() -> None:
    rig, logits = LineRig(), noise(4)
    joins = {2: GREEDY, 0: DRAWN, 4: DRAWN, 5: line_sampling(bias={3: 99.0})}
    rows = (
        PlannedRow(1, 0, [1, 2], sampled=False),
        PlannedRow(2, 0, [1, 2], twins=(5,)),
        PlannedRow(0, 0, [1], twins=(4,)),
    )

    result = rig.run(*rows, logits=logits[[0, 0, 1, 1]], joins=joins)

    tokens = entry_tokens(result)
    assert tokens[:2] == [[int(logits[0].argmax())], [3]]
    assert tokens[2] == tokens[3]
    assert [one.entry for one in result.logprobs] == [2, 3]
    assert result.logprobs[0].logprobs == top_logprobs(logits[1:2], np.array(tokens[2]), 2, (7,))
    # Nobody goes on from what was sampled for lines past those of the tables.
    assert rig.lines.last.tolist() == [tokens[2][0], 0, tokens[0][0], 0]
    assert result.step == 1
    assert finite(result) == [1, 1, 1]


def test_a_step_is_sampled_once_and_by_its_own_command() -> None:
    rig = LineRig()
    plan = rig.plans.plan(WAITS, joins={0: GREEDY}, sampled_later=True)
    step = rig.launch(plan, saying(7))

    with pytest.raises(ValueError, match="was not sampled"):
        step.result()
    with pytest.raises(ValueError, match="step 1 is sampled again, or by 2"):
        step.sample(Sample(2))
    step.sample(Sample(1))
    with pytest.raises(ValueError, match="sampled again"):
        step.sample(Sample(1))

    assert entry_tokens(step.result()) == [[7]]
    assert entry_tokens(step.result()) == [[7]]
    assert (step.forwarded, step.halfway) == (True, True)


def test_a_step_may_sample_nothing() -> None:
    rig = LineRig()

    result = rig.run(PlannedRow(0, 0, [1, 2], sampled=False), logits=noise(0))

    assert (result.accepted, result.tokens, finite(result)) == (b"", b"", [1])


def test_kept_lines_are_sampled_later_as_they_would_have_been() -> None:
    rows = [PlannedRow(line, 9 + line, [1]) for line in (3, 1, 0)]
    joins, logits = {3: DRAWN, 1: DRAWN, 0: GREEDY}, noise(3)
    at_once = LineRig().run(*rows, logits=logits, joins=joins)
    rig = LineRig()
    step = rig.launch(rig.plans.plan(*rows, joins=joins, sampled_later=True), logits)

    step.sample(Sample(1, keep=packed([3, 0], INT32)))
    logits.zero_()
    result = step.result()

    wanted = entry_tokens(at_once)
    assert entry_tokens(result) == [[], wanted[1], []]
    assert [one.entry for one in result.logprobs] == [1]
    assert result.logprobs[0] == at_once.logprobs[1]
    assert rig.lines.last.tolist() == [0, wanted[1][0], 0, 0]
    later = rig.lines.sample_kept(sample_kept(0, 3, call=8))
    assert (later.call, entry_tokens(later)) == (8, [wanted[2], wanted[0]])
    assert [(one.entry, one.logprobs) for one in later.logprobs] == [
        (1, at_once.logprobs[0].logprobs)
    ]
    assert rig.lines.last.tolist() == [wanted[2][0], wanted[1][0], 0, wanted[0][0]]


def test_all_lines_of_a_step_may_be_kept() -> None:
    rig = LineRig()
    plan = rig.plans.plan(WAITS, joins={0: GREEDY}, sampled_later=True)
    step = rig.launch(plan, saying(7), likely=torch.tensor([7]))

    step.sample(Sample(1, keep=packed([0], INT32)))

    assert entry_tokens(step.result()) == [[]]
    assert entry_tokens(rig.lines.sample_kept(sample_kept(0))) == [[7]]


def test_likeliest_tokens_that_the_step_has_found_are_those_of_the_rows_that_are_left() -> None:
    rig, logits = LineRig(), saying(4, 5, 6)
    logits[2, 1] = torch.nan
    rows = [PlannedRow(line, 9, [1]) for line in range(3)]
    plan = rig.plans.plan(*rows, joins=dict.fromkeys(range(3), GREEDY), sampled_later=True)
    step = rig.launch(plan, logits, likely=likeliest(logits))

    step.sample(Sample(1, keep=packed([0], INT32)))

    result = step.result()
    assert entry_tokens(result) == [[], [5], []]
    assert failures(result) == {2: "logits are not finite"}
    assert finite(result) == [1, 1, 0]


DRAFTS = [11, 12, 13]


@pytest.mark.parametrize("right", range(4))
def test_drafts_are_kept_up_to_the_first_that_is_not_sampled(right: int) -> None:
    """What is sampled instead of a wrong one, or behind the last, comes with them."""
    rig = LineRig()
    said = [*DRAFTS[:right], 30, *DRAFTS[right + 1 :], 31][:4]
    rows = [
        PlannedRow(1, 20, [5]),
        PlannedRow(0, 9, [10, *DRAFTS], drafts=3),
        PlannedRow(2, 20, [5]),
    ]

    step = rig.launch(
        rig.plans.plan(*rows, joins=dict.fromkeys(range(3), GREEDY)), saying(7, *said, 8)
    )

    assert entry_tokens(step.result()) == [[7], said[: right + 1], [8]]
    assert step.length_and_last(1) == (10 + right, said[right])
    # The last token of the run is known when it is read.
    assert rig.lines.last.tolist() == [0, 7, 8, 0]


@pytest.mark.parametrize("seed", range(5))
def test_a_run_draws_what_is_drawn_step_by_step(seed: int) -> None:
    """Each token with its own position; log-probabilities come in one piece."""
    logits, alone = noise(4, seed), LineRig()
    said: list[int] = []
    single: list[Any] = []
    for k in range(4):
        joins = {} if k else {0: DRAWN}
        one = alone.run(PlannedRow(0, 9 + k, [1]), logits=logits[k : k + 1], joins=joins)
        said += entry_tokens(one)[0]
        single += [value.logprobs for value in one.logprobs]

    drafts = [said[0], said[1], (said[2] + 1) % VOCAB]
    result = LineRig().run(
        PlannedRow(1, 5, [2]),
        PlannedRow(0, 9, [1, *drafts], drafts=3),
        logits=torch.cat((saying(6), logits)),
        joins={0: DRAWN, 1: GREEDY},
    )

    assert entry_tokens(result) == [[6], said[:3]]
    [told] = result.logprobs
    assert told.entry == 1
    assert told.logprobs == top_logprobs(logits[:3], np.array(said[:3]), 2, (7,))
    assert told.logprobs.values == b"".join(one.values for one in single[:3])


def test_log_probabilities_of_several_runs_go_to_their_entries() -> None:
    result = LineRig().run(
        PlannedRow(0, 9, [1, 21, 22], drafts=2),
        PlannedRow(1, 9, [1]),
        PlannedRow(2, 9, [1, 23], drafts=1),
        logits=saying(21, 30, 31, 32, 23, 33),
        joins=dict.fromkeys((0, 2), line_sampling(top_logprobs=0))
        | {1: line_sampling(top_logprobs=3)},
    )

    assert entry_tokens(result) == [[21, 30], [32], [23, 33]]
    told = {one.entry: one.logprobs for one in result.logprobs}
    assert len(told) == len(result.logprobs) == 3
    assert {e: unpacked(one.ids, INT32).tolist() for e, one in told.items()} == {
        0: [21, 30],
        1: [32],
        2: [23, 33],
    }
    assert [told[entry].top for entry in range(3)] == [0, 3, 0]


def test_a_run_ends_before_logits_that_are_not_finite() -> None:
    rig, logits = LineRig(), saying(11, 12, 13, 14)
    logits[2] = torch.nan
    step = rig.launch(
        rig.plans.plan(PlannedRow(0, 9, [10, *DRAFTS], drafts=3), joins={0: DRAWN}), logits * 9
    )

    assert entry_tokens(step.result()) == [[11, 12]]
    assert failures(step.result()) == {}
    assert step.length_and_last(0) == (11, 12)


def test_a_run_without_a_usable_token_fails_alone() -> None:
    rig, logits = LineRig(), saying(11, 12, 7)
    logits[0, 0] = torch.inf
    rows = PlannedRow(0, 9, [10, 11], drafts=1), PlannedRow(1, 9, [1])
    step = rig.launch(rig.plans.plan(*rows, joins={0: GREEDY, 1: GREEDY}), logits)

    assert entry_tokens(step.result()) == [[], [7]]
    assert failures(step.result()) == {0: "logits are not finite"}
    assert finite(step.result()) == [0, 1]
    assert step.length_and_last(0) == (11, 0)


def test_logits_of_a_step_with_drafts_cannot_be_kept() -> None:
    rig = LineRig()
    plan = rig.plans.plan(PlannedRow(0, 9, [1, 2], drafts=1), joins={0: GREEDY}, sampled_later=True)
    step = rig.launch(plan, saying(2, 3))

    with pytest.raises(ValueError, match="with drafts are kept"):
        step.sample(Sample(1, keep=packed([0], INT32)))


def test_rows_are_finite_as_the_forward_pass_says_sampled_or_not() -> None:
    rig, told = LineRig(), torch.tensor([True, False, True, False])
    logits = saying(7, 8)
    logits[0, 0] = torch.nan  # an overflow behind the last layer
    rows = [PlannedRow(line, 0, [1, 2], sampled=line in (0, 3)) for line in range(4)]
    step = rig.launch(rig.plans.plan(*rows, joins={0: GREEDY, 3: GREEDY}), logits, finite=told)
    told.fill_(True)

    result = step.result()

    assert finite(result) == [0, 0, 1, 0]
    assert failures(result) == {0: "logits are not finite"}
    assert entry_tokens(result) == [[], [8]]


@pytest.mark.parametrize("is_known", [False, True])
def test_a_kept_row_says_at_once_whether_it_is_finite(is_known: bool) -> None:
    """Where its logits are all that tells; who asks for its token later hears it again."""
    rig, logits = LineRig(), saying(4, 5, 6)
    logits[:2, 1] = torch.nan
    rows = [PlannedRow(line, 9, [1]) for line in range(3)]
    plan = rig.plans.plan(*rows, joins=dict.fromkeys(range(3), GREEDY), sampled_later=True)
    likely = likeliest(logits)
    step = rig.launch(plan, logits, likely=likely if is_known else None)

    step.sample(Sample(1, keep=packed([1, 2], INT32)))
    likely.zero_()
    logits.zero_()

    assert finite(step.result()) == [0, 0, 1]
    assert failures(step.result()) == {0: "logits are not finite"}
    later = rig.lines.sample_kept(sample_kept(1, 2))
    assert failures(later) == {0: "logits are not finite"}
    assert entry_tokens(later) == [[], [6]]


def test_a_row_that_leaves_no_token_is_finite_all_the_same() -> None:
    nothing = line_sampling(min_new_tokens=9, prompt_tokens=9, stop_ids=range(VOCAB))

    result = LineRig().run(WAITS, logits=saying(7), joins={0: nothing})

    assert "no token" in failures(result)[0]
    assert finite(result) == [1]


def test_prompts_get_their_values_behind_all_that_is_sampled() -> None:
    logits = noise(6)
    spans = [
        PromptSpan(1, 1, packed([4, 5], INT32), top=3, ids=packed([9, 2], INT32)),
        PromptSpan(0, 0, packed([6], INT32), top=0),
    ]
    rows = PlannedRow(0, 0, [1, 4], drafts=1), PlannedRow(1, 0, [1, 2, 3, 4])

    result = LineRig().run(*rows, logits=logits, joins={0: GREEDY, 1: GREEDY}, spans=spans)

    assert result.spans == [
        top_logprobs(logits[3:5], np.array([4, 5]), 3, (9, 2)),
        top_logprobs(logits[5:6], np.array([6]), 0, ()),
    ]
