"""What stays from step to step of each line, what goes with it, and what is refused."""

import msgspec
import pytest
import torch

from runtime.wire.arrays import INT32, packed
from runtime.wire.step import VERSION, LineSampling, Sample, TableChanges
from tests.runtime.executor.test_launched_step import DRAWN, GREEDY, VOCAB, LineRig, noise, saying
from tests.testing.plans import (
    PlannedRow,
    entry_tokens,
    failures,
    line_sampling,
    mask,
    sample_kept,
)

COUNTS = line_sampling(frequency_penalty=0.2)
RULED = line_sampling(constrained=True)


def keeping(rig: LineRig, joins: dict[int, LineSampling], logits: torch.Tensor) -> None:
    """Run a step of lines that join, and keep all of their logits."""
    rows = [PlannedRow(line, 9, [1]) for line in joins]
    plan = rig.plans.plan(*rows, joins=joins, sampled_later=True)
    rig.launch(plan, logits).sample(Sample(plan.step, keep=packed([*joins], INT32)))


def guessing(
    rig: LineRig, row: PlannedRow, *said: int, joins: dict[int, LineSampling] | None = None
) -> list[int]:
    """Launch a row, do not ask for its result; return where it started."""
    rig.launch(rig.plans.plan(row, joins=joins), saying(*said))
    return rig.rows[-1].start.tolist()


@pytest.mark.parametrize("version", [0, VERSION - 1, VERSION + 1])
def test_a_plan_of_another_version_is_refused_and_changes_nothing(version: int) -> None:
    rig = LineRig()
    plan = msgspec.structs.replace(rig.plans.plan(joins={0: GREEDY}), version=version)

    with pytest.raises(ValueError, match=f"version {version}, and this executor has {VERSION}"):
        rig.lines.begin(plan)

    assert not rig.lines.tables.state.any()
    with pytest.raises(KeyError):
        rig.lines.sampler.state(0)


def test_tables_follow_before_rows_are_read() -> None:
    rig = LineRig()
    rig.lines.begin(rig.plans.plan())
    plan = rig.plans.plan(PlannedRow(2, 0, [1]))
    changes = TableChanges(states=packed([2, 77], INT32))

    rows = rig.lines.begin(msgspec.structs.replace(plan, changes=changes))

    assert rows.ids.tolist() == [1]
    assert rig.lines.tables.state.tolist() == [1, 2, 77, 4]


def test_a_row_is_fed_only_with_what_was_sampled_for_its_line_as_it_is() -> None:
    """Neither before anything was, nor with what somebody else left, nor what is not yet."""
    rig = LineRig()
    fed = PlannedRow(1, 10, [0], from_device=1)
    refused = pytest.raises(ValueError, match=r"lines \[1\] are fed, and nothing was sampled")
    with refused:
        rig.lines.begin(rig.plans.plan(fed, joins={1: GREEDY}))
    rig.run(PlannedRow(0, 9, [1]), PlannedRow(1, 9, [1]), logits=saying(7, 8), joins={0: GREEDY})
    assert rig.lines.begin(rig.plans.plan(fed)).start.tolist() == [10]
    with refused:
        rig.lines.begin(rig.plans.plan(fed, left=[1], joins={1: GREEDY}))

    rig.run(PlannedRow(1, 9, [1]), logits=saying(8))
    with refused:
        rig.lines.begin(rig.plans.plan(fed, joins={1: GREEDY}))
    rig.run(PlannedRow(1, 9, [1]), logits=saying(8))
    keeping(rig, {1: GREEDY}, saying(9))
    with refused:
        rig.lines.begin(rig.plans.plan(fed))
    rig.lines.sample_kept(sample_kept(1))
    rig.lines.begin(rig.plans.plan(fed))
    assert rig.lines.last[1] == 9


@pytest.mark.parametrize("leaves", [True, False])
def test_kept_logits_go_with_the_line(leaves: bool) -> None:
    rig = LineRig()
    keeping(rig, {0: GREEDY, 1: GREEDY}, saying(7, 8))

    rig.lines.begin(rig.plans.plan(left=[0] if leaves else [], joins={0: DRAWN}))

    with pytest.raises(KeyError):
        rig.lines.sample_kept(sample_kept(0))
    assert entry_tokens(rig.lines.sample_kept(sample_kept(1))) == [[8]]
    with pytest.raises(KeyError):
        rig.lines.sample_kept(sample_kept(1))


def test_a_guest_past_the_tables_is_kept_and_leaves_as_others_do() -> None:
    rig = LineRig()
    plan = rig.plans.plan(
        PlannedRow(0, 9, [1], twins=(4, 5)),
        joins={0: GREEDY, 4: RULED, 5: RULED},
        sampled_later=True,
    )
    rig.launch(plan, saying(7, 7, 7)).sample(Sample(1, keep=packed([4, 5], INT32)))
    told = rig.lines.sample_kept(sample_kept(5, masks=[mask(5, (3,), VOCAB)]))
    assert entry_tokens(told) == [[3]]
    assert rig.lines.last.tolist() == [7, 0, 0, 0]

    rig.lines.begin(rig.plans.plan(left=[4, 5]))

    with pytest.raises(KeyError):
        rig.lines.sample_kept(sample_kept(4, masks=[mask(4, (3,), VOCAB)]))


def test_kept_logits_are_copied_alone() -> None:
    rig, logits = LineRig(), noise(2)
    keeping(rig, {2: GREEDY, 0: GREEDY}, logits)

    kept, position = rig.lines._kept[2]
    assert kept.untyped_storage().nbytes() == 4 * VOCAB
    assert position == 10
    assert torch.equal(kept, logits[0])


def test_kept_lines_fail_alone() -> None:
    rig, logits = LineRig(), saying(7, 8, 9)
    logits[1, 0] = torch.nan
    keeping(rig, {0: GREEDY, 1: DRAWN, 2: GREEDY}, logits)

    told = rig.lines.sample_kept(sample_kept(0, 1, 2))

    assert entry_tokens(told) == [[7], [], [9]]
    assert failures(told) == {1: "logits are not finite"}
    assert told.logprobs == []


@pytest.mark.parametrize("kept_first", [False, True])
def test_penalties_count_what_is_sampled_without_the_host(kept_first: bool) -> None:
    """Also what is sampled late, and what is sampled beside it meanwhile."""
    rig = LineRig()
    logits = torch.zeros(1, VOCAB)
    logits[0, 3], logits[0, 4] = 2.0, 1.5
    said: list[int] = []
    for step in range(6):
        row = PlannedRow(0, 9 + step, [1])
        joins = {} if step else {0: COUNTS, 1: COUNTS}
        plan = rig.plans.plan(row, joins=joins, sampled_later=True)
        launched = rig.launch(plan, logits)
        if kept_first and step % 2 == 0:
            launched.sample(Sample(plan.step, keep=packed([0], INT32)))
            rig.run(PlannedRow(1, 9, [1]), logits=logits)
            said += entry_tokens(rig.lines.sample_kept(sample_kept(0)))[0]
        else:
            launched.sample(Sample(plan.step))
            said.append(int(rig.lines.last[0]))

    assert said == [3, 3, 3, 4, 3, 4]


def test_a_line_that_joins_anew_is_counted_anew() -> None:
    rig = LineRig()
    logits = torch.zeros(1, VOCAB)
    logits[0, 3], logits[0, 4] = 2.0, 1.5
    row = PlannedRow(0, 9, [1])

    def says(**given: object) -> list[int]:
        return entry_tokens(rig.run(row, logits=logits, **given))[0]

    assert [says(joins={0: COUNTS}), says(), says(), says()] == [[3], [3], [3], [4]]
    assert says(joins={0: COUNTS}) == [3]
    assert [says(), says(), says()] == [[3], [3], [4]]
    assert says(left=[0], joins={0: line_sampling(frequency_penalty=0.2, output=[3] * 3)}) == [4]


def test_a_constrained_line_goes_by_its_last_mask_until_it_is_anothers() -> None:
    rig, row = LineRig(), PlannedRow(0, 9, [1])

    def says(**given: object) -> list[int]:
        return entry_tokens(rig.run(row, logits=noise(1), **given))[0]

    assert says(joins={0: RULED}, masks=[mask(0, (3,), VOCAB)]) == [3]
    assert says() == [3]
    assert says(masks=[mask(0, (4,), VOCAB)]) == [4]
    with pytest.raises(ValueError, match="without a mask"):
        says(left=[0], joins={0: RULED})
    assert says(joins={0: GREEDY}) == [int(noise(1).argmax())]


def test_starts_that_only_the_executor_knows_add_up_over_steps_that_nobody_reads() -> None:
    rig = LineRig()
    unknown = PlannedRow(0, 40, [0, 21, 22], drafts=2, from_device=2)

    assert guessing(
        rig, PlannedRow(0, 9, [10, 11, 12], drafts=2), 11, 12, 13, joins={0: GREEDY}
    ) == [9]
    assert guessing(rig, unknown, 21, 30, 31) == [12]  # all right
    assert rig.lines.last[0] == 13
    assert guessing(rig, unknown, 32, 33, 34) == [14]  # one right
    assert rig.lines.last[0] == 30
    # None right, and no drafts behind it: from then on there is nothing that the host cannot tell.
    assert guessing(rig, PlannedRow(0, 40, [0], from_device=2), 35) == [15]
    assert rig.lines.last[0] == 35
    assert guessing(rig, PlannedRow(0, 16, [0], from_device=1), 36) == [16]
    assert rig.lines.last[0] == 36


def test_rows_beside_those_of_unknown_length_start_where_they_are_told() -> None:
    rig = LineRig()
    rows = [PlannedRow(0, 9, [10, 11], drafts=1), PlannedRow(1, 20, [5])]
    rig.launch(rig.plans.plan(*rows, joins={0: GREEDY, 1: GREEDY}), saying(11, 12, 6))

    rows = [PlannedRow(1, 21, [0], from_device=1), PlannedRow(0, 11, [0, 13], 2, drafts=1)]
    rows.append(PlannedRow(2, 0, [1, 2, 3], sampled=False))
    begun = rig.lines.begin(rig.plans.plan(*rows))

    assert begun.start.tolist() == [21, 11, 0]
    assert begun.end.tolist() == [22, 13, 3]
    assert rig.lines.last.tolist() == [12, 6, 0, 0]


def test_a_run_that_is_not_gone_on_with_waits() -> None:
    rig = LineRig()
    guessing(rig, PlannedRow(0, 9, [10, 11], drafts=1), 11, 12, joins={0: GREEDY, 1: GREEDY})
    guessing(rig, PlannedRow(1, 5, [10]), 7)

    assert guessing(rig, PlannedRow(0, 11, [0], from_device=2), 8) == [11]


def test_the_host_may_go_on_from_a_result_that_it_has_read() -> None:
    rig = LineRig()
    plan = rig.plans.plan(PlannedRow(0, 9, [10, 11], drafts=1), joins={0: GREEDY})
    step = rig.launch(plan, saying(30, 12))
    assert entry_tokens(step.result()) == [[30]]

    assert guessing(rig, PlannedRow(0, 10, [30]), 8) == [10]
    assert guessing(rig, PlannedRow(0, 11, [0], from_device=1), 8) == [11]


GUESSES = PlannedRow(0, 9, [10, 11], drafts=1)


@pytest.mark.parametrize(
    ("row", "left", "words"),
    [
        (PlannedRow(0, 11, [0], from_device=1), False, "has drafts in flight, and its start"),
        (PlannedRow(0, 10, [0], from_device=2), False, "line 0 is at 11, past the bound 10"),
        (PlannedRow(1, 11, [0], from_device=2), False, "line 1 has no drafts in flight"),
        (PlannedRow(0, 11, [0], from_device=2), True, "line 0 has no drafts in flight"),
    ],
)
def test_rows_that_do_not_fit_what_is_in_flight_are_refused(
    row: PlannedRow, left: bool, words: str
) -> None:
    rig = LineRig()
    guessing(rig, GUESSES, 11, 12, joins={0: GREEDY, 1: GREEDY})

    with pytest.raises(ValueError, match=words):
        rig.lines.begin(rig.plans.plan(row, left=[0] if left else []))


@pytest.mark.parametrize(
    ("row", "wants", "words"),
    [
        (GUESSES, RULED, "penalties or a grammar has drafts"),
        (GUESSES, COUNTS, "penalties or a grammar has drafts"),
        (GUESSES, line_sampling(repetition_penalty=1.1), "penalties or a grammar has drafts"),
        (PlannedRow(1, 9, [10, 11], drafts=1, twins=(0,)), COUNTS, "penalties or a grammar"),
        (PlannedRow(0, 9, [10, 11], drafts=2), GREEDY, "as many drafts as tokens"),
    ],
)
def test_drafts_that_cannot_be_checked_are_refused(
    row: PlannedRow, wants: LineSampling, words: str
) -> None:
    rig = LineRig()

    with pytest.raises(ValueError, match=words):
        rig.lines.begin(rig.plans.plan(row, joins={0: wants, 1: GREEDY}))


def test_lines_without_drafts_may_want_anything_beside_one_with_them() -> None:
    rig = LineRig()
    rows = GUESSES, PlannedRow(1, 9, [1]), PlannedRow(2, 9, [1, 2], drafts=1, sampled=False)
    joins = {0: line_sampling(min_new_tokens=2, stop_ids=(11,), prompt_tokens=10), 1: COUNTS}
    said: list[list[list[int]]] = []
    for step in range(3):
        logits = saying(11, 11, 5)
        logits[2, 6] = 8.7
        result = rig.run(*rows, logits=logits, joins={} if step else joins)
        said.append(entry_tokens(result))

    # The stop token is held back at both positions of the run.
    assert all(11 not in run for run, _ in said)
    assert [token for _, token in said] == [[5], [5], [6]]
