"""Which steps are in flight, and whom the next one takes along before they are settled."""

import pytest

from mem_cache.spec import PoolSizes
from runtime.messages import Logprobs
from runtime.scheduler.step import Step, StepState
from tests.testing.scheduler_rig import Rig

AMPLE = PoolSizes(full_pages=100, swa_pages=100, states=30)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.mark.parametrize(
    ("state", "refused"),
    [
        (StepState.LAUNCHED, StepState.SETTLED),
        (StepState.SAMPLED, StepState.SAMPLED),
        (StepState.SETTLED, StepState.LAUNCHED),
    ],
)
def test_the_states_of_a_step_follow_each_other(state: StepState, refused: StepState) -> None:
    rig = Rig(AMPLE)
    rig.send(PROMPT, 5)
    rig.scheduler.turn()
    rows = rig.replica.sets.decoding.plan()
    step = Step(rows, rig.replica._builder.build(rows, step=1, decoding=1), told=1, decoding=1)
    for name in StepState:
        if StepState.PLANNED.value < name.value <= state.value:
            step.advance(name)

    with pytest.raises(ValueError, match=f"{state.name} becomes {refused.name}"):
        step.advance(refused)


@pytest.mark.parametrize("overlap", [False, True])
def test_only_grammars_have_a_step_sampled_after_the_one_before_is_settled(overlap: bool) -> None:
    rig = Rig(AMPLE, overlap=overlap)
    rig.send(PROMPT, 9, min_new=4)
    rig.send(PROMPT[1:], 9, logprobs=Logprobs(99, 2))
    rig.run()

    assert all(plan.plan.sampling is not None for plan in rig.plans)


def test_whoever_goes_on_after_a_prefill_step_joins_with_its_entry() -> None:
    rig = Rig(AMPLE, overlap=True, chunk=30)
    first, single = rig.send(PROMPT, 5), rig.send([7, 7, 7], 1)
    nothing, long = rig.send([8, 8], 0), rig.send([9] * 40, 5)
    rig.scheduler.turn()

    step = rig.replica.in_flight
    assert step is not None
    assert {r.id for r in step.requests} == {first, single, nothing, long}
    assert [r.id for r in step.joining] == [first]
    assert set(step.entries) == {first, single}
    for request_id, entry in step.entries.items():
        assert rig.plans[-1].sampled_line[entry] == rig.request(request_id).row

    rig.scheduler.turn()
    decode = rig.plans[-1]
    assert decode.decodes
    assert decode.feed.tolist() == [True]
    assert decode.line.tolist() == [rig.request(first).row]


def test_a_step_with_twins_or_prompt_values_is_settled_in_its_turn() -> None:
    rig = Rig(AMPLE, overlap=True, rows=1)
    requests = [rig.send(PROMPT, 5), rig.send(PROMPT, 5)]
    rig.scheduler.turn()

    assert rig.replica.in_flight is None
    assert [len(rig.tokens(r)) for r in requests] == [1, 1]

    rig.run()
    rig.scheduler.turn()
    rig.send([7] * 9, 5, logprobs=Logprobs(0))
    rig.scheduler.turn()
    assert rig.plans[-1].spans
    assert rig.replica.in_flight is None
    rig.run()
    rig.assert_conserved()


def test_without_overlap_no_step_is_in_flight() -> None:
    rig = Rig(AMPLE, overlap=False)
    rig.send(PROMPT, 5)
    rig.run()

    assert not any(plan.feed.any() for plan in rig.plans)
    assert rig.runner.overlapped == 0
