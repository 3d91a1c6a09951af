"""Which steps are in flight, and whom the next one takes along before they are settled."""

import msgspec
import numpy as np
import pytest

from mem_cache.spec import PoolSizes
from runtime.executor.step_plan import Phase, SampleState
from runtime.grammar.output import GrammarOutput
from runtime.messages import Logprobs, Sampling
from tests.testing.scheduler_rig import Rig

AMPLE = PoolSizes(full_pages=100, swa_pages=100, rings=30)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def state_of(sampling: Sampling, logprobs: Logprobs | None = None) -> SampleState:
    return SampleState(sampling, logprobs, np.zeros(3, np.int32), stop_ids=(1,))


def test_what_a_device_can_do_alone_reads_no_output() -> None:
    sampling = Sampling(20, 0, temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, logit_bias={3: 1.0})
    assert not state_of(sampling, Logprobs(5, 3)).reads_output


@pytest.mark.parametrize("field", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_a_penalty_reads_the_output(field: str) -> None:
    sampling = msgspec.structs.replace(Sampling(20, 0), **{field: 0.5})
    assert state_of(sampling).reads_output


def test_a_grammar_reads_the_output() -> None:
    mask = np.full(2, -1, np.int32)
    ruled = state_of(Sampling(20, 0))
    ruled.constraint = GrammarOutput(1, None, mask, accept=lambda token: None, allowed=mask)

    assert ruled.reads_output


def test_the_output_is_read_until_it_has_the_least_number_of_tokens() -> None:
    state = state_of(Sampling(20, 0, min_new_tokens=2))
    needed: list[bool] = []
    for token in range(4):
        needed.append(state.reads_output)
        state.output.append(token)

    assert needed == [True, True, False, False]


def test_whoever_goes_on_after_a_prefill_step_joins_with_its_entry() -> None:
    rig = Rig(AMPLE, overlap=True, chunk=30)
    first, single = rig.send(PROMPT, 5), rig.send([7, 7, 7], 1)
    nothing, long = rig.send([8, 8], 0), rig.send([9] * 40, 5)
    rig.scheduler.turn()

    step = rig.scheduler._flight
    assert step is not None
    assert {r.id for r in step.requests} == {first, single, nothing, long}
    assert [r.id for r in step.joining] == [first]
    assert set(step.entries) == {first, single}
    for request_id, entry in step.entries.items():
        assert step.plan.samples[entry] is rig.request(request_id).sample

    rig.scheduler.turn()
    decode = rig.plans[-1]
    assert decode.phase is Phase.DECODE
    assert decode.feed is not None
    assert decode.feed.tolist() == [step.entries[first]]


def test_a_step_with_twins_or_prompt_values_is_settled_in_its_turn() -> None:
    rig = Rig(AMPLE, overlap=True, rows=1)
    requests = [rig.send(PROMPT, 5), rig.send(PROMPT, 5)]
    rig.scheduler.turn()

    assert rig.scheduler._flight is None
    assert [len(rig.tokens(r)) for r in requests] == [1, 1]

    rig.run()
    rig.scheduler.turn()
    rig.send([7] * 9, 5, logprobs=Logprobs(0))
    rig.scheduler.turn()
    assert rig.plans[-1].prompt_logprobs
    assert rig.scheduler._flight is None
    rig.run()
    rig.assert_conserved()


def test_without_overlap_no_step_is_in_flight() -> None:
    rig = Rig(AMPLE, overlap=False)
    rig.send(PROMPT, 5)
    rig.run()

    assert not any(plan.feed is not None for plan in rig.plans)
    assert rig.runner.overlapped == 0
