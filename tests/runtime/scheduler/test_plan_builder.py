"""Plans as data: what executors are told, once, and what has changed since."""

from itertools import chain

import msgspec
import numpy as np
import pytest

import runtime.scheduler.plan_builder as plan_builder
from mem_cache.spec import PoolSizes
from runtime.messages import Generate, Grammar, Logprobs, Sampling, pack_ids
from runtime.scheduler.request import Request
from runtime.wire.arrays import FLOAT32, INT32, packed, unpacked
from runtime.wire.step import VERSION, LineSampling, StepPlan
from tests.testing.fake_grammars import FakeGrammars
from tests.testing.scheduler_rig import Rig

AMPLE = PoolSizes(full_pages=100, swa_pages=100, states=30)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
A = Grammar("regex", "a")


def plans(rig: Rig) -> list[StepPlan]:
    return [plan.plan for plan in rig.plans]


def triples(data: bytes) -> list[tuple[int, ...]]:
    return [tuple(part) for part in unpacked(data, INT32, -1, 3).tolist()]


@pytest.fixture(autouse=True)
def _either(either_way: bool) -> None:
    """Run each test with and without overlap."""


def test_a_line_joins_once_with_all_that_its_request_asks_for() -> None:
    rig = Rig(AMPLE, chunk=4)
    sampling = Sampling(
        6,
        seed=(1 << 64) - 2,
        temperature=0.5,
        top_k=7,
        top_p=0.9,
        min_p=0.1,
        presence_penalty=0.25,
        frequency_penalty=0.75,
        repetition_penalty=1.5,
        min_new_tokens=2,
        logit_bias={4: 1.5, 9: -2.0},
        stop_token_ids=(30, 20),
    )
    message = Generate(1, pack_ids(PROMPT), sampling, logprobs=Logprobs(99, 3, (8, 7)))
    rig.socket.inbox.append(message)
    rig.run()

    (join,) = (join for plan in plans(rig) for join in plan.joins)
    assert plans(rig)[2].joins == [join]  # the third chunk ends the prompt
    assert join.sampling == LineSampling(
        seed=(1 << 64) - 2,
        prompt_tokens=10,
        temperature=0.5,
        top_k=7,
        top_p=0.9,
        min_p=0.1,
        presence_penalty=0.25,
        frequency_penalty=0.75,
        repetition_penalty=1.5,
        min_new_tokens=2,
        prompt=packed(PROMPT, INT32),
        bias_ids=packed([4, 9], INT32),
        bias_values=packed([1.5, -2.0], FLOAT32),
        stop_ids=packed([20, 30], INT32),
        top_logprobs=3,
        logprob_ids=packed([8, 7], INT32),
    )


@pytest.mark.parametrize(
    ("penalty", "prompt", "output"),
    [
        ({}, [], []),
        ({"presence_penalty": 0.5}, [], [7]),
        ({"frequency_penalty": -0.5}, [], [7]),
        ({"repetition_penalty": 1.5}, PROMPT, [7]),
    ],
)
def test_what_a_penalty_counts_travels_with_it(
    penalty: dict[str, float], prompt: list[int], output: list[int]
) -> None:
    sampling = msgspec.structs.replace(Sampling(6, seed=1), **penalty)
    request = Request(Generate(1, pack_ids(PROMPT), sampling), (), 0.0)
    request.append(7)
    told = plan_builder._line_sampling(request)

    assert [unpacked(ids, INT32).tolist() for ids in (told.prompt, told.output)] == [prompt, output]


def test_what_nothing_asks_for_does_not_travel() -> None:
    rig = Rig(AMPLE)
    rig.send(PROMPT, 3, stop=(5,))
    rig.run()

    told = plans(rig)[0].joins[0].sampling
    assert (told.prompt, told.output, told.stop_ids, told.bias_ids) == (b"", b"", b"", b"")
    assert told.top_logprobs == -1
    for plan in plans(rig):
        assert (plan.rows.window_from, plan.rows.write_from, plan.rows.drafts) == (b"", b"", b"")


@pytest.mark.parametrize("token", [-(1 << 40), 1 << 40])
def test_token_ids_that_no_vocabulary_has_fail_their_request_alone(token: int) -> None:
    rig = Rig(AMPLE)
    sampling = Sampling(3, seed=0, logit_bias={token: 1.0})
    rig.socket.inbox.append(Generate(9, pack_ids(PROMPT), sampling))
    rig.run()

    (bias,) = unpacked(plans(rig)[0].joins[0].sampling.bias_ids, INT32).tolist()
    assert not 0 <= bias < 1 << 30


def test_steps_are_numbered_and_say_whether_they_are_sampled_at_once() -> None:
    grammars = FakeGrammars(50)
    grammars.instant = True
    rig = Rig(AMPLE, grammars=grammars)
    rig.send(PROMPT, 3)
    rig.run()
    free = len(rig.plans)
    rig.send(PROMPT[::-1], 3, grammar=A)
    rig.run()

    assert [plan.step for plan in plans(rig)] == [*range(1, len(rig.plans) + 1)]
    assert {plan.version for plan in plans(rig)} == {VERSION}
    told = [plan.sampling for plan in plans(rig)[:free]]
    assert [one.step for one in told if one is not None] == [*range(1, free + 1)]
    assert all(plan.sampling is None for plan in plans(rig)[free:] if plan.sampled)


def test_pages_windows_and_rings_travel_when_they_change_and_only_then() -> None:
    rig = Rig(AMPLE, rows=1, chunk=-1)
    rig.send(PROMPT, 12)
    rig.run()

    first, *rest = plans(rig)
    # Pages of 8 tokens, and a window of 8 in SWA pages of 4.
    assert [triple[:2] for triple in triples(first.changes.pages)] == [(0, 0), (0, 1)]
    assert [triple[:2] for triple in triples(first.changes.windows)] == [(0, 0), (0, 1)]
    assert len(unpacked(first.changes.states, INT32)) == 2
    later = [triple[:2] for plan in rest for triple in triples(plan.changes.pages)]
    # A third page, and the first two once more should the tree have had them before.
    assert later[-1] == (0, 2) or (0, 2) in later
    assert not any(plan.changes.windows or plan.changes.states for plan in rest)


def test_a_line_that_is_left_is_told_before_somebody_else_has_it() -> None:
    rig = Rig(AMPLE, rows=1)
    rig.send(PROMPT, 3)
    rig.send(PROMPT[::-1], 3)
    rig.run()

    left = [unpacked(plan.changes.left, INT32).tolist() for plan in plans(rig)]
    joined = [[join.line for join in plan.joins] for plan in plans(rig)]
    assert [*chain(*left)] == [0]
    assert [*chain(*joined)] == [0, 0]
    assert left.index([0]) <= [k for k, lines in enumerate(joined) if lines][1]


def test_waiting_requests_are_sampled_on_lines_past_the_tables() -> None:
    rig = Rig(AMPLE, rows=1, chunk=-1)
    for _ in range(4):
        rig.send(PROMPT, 3)
    rig.run()

    first, second = rig.plans[:2]
    assert first.sampled.tolist() == [0] * 4
    assert first.sampled_line.tolist() == [0, 1, 2, 3]
    assert [join.line for join in first.plan.joins] == [0, 1, 2, 3]
    assert unpacked(second.plan.changes.left, INT32).tolist()[-3:] == [1, 2, 3]


def test_who_comes_back_joins_again_with_the_output_that_its_penalties_count() -> None:
    tight = PoolSizes(full_pages=8, swa_pages=40, states=16)
    rig = Rig(tight, rows=4, chunk=16)
    for k in range(4):
        sampling = Sampling(30, seed=0, temperature=0.0, presence_penalty=0.5)
        rig.socket.inbox.append(Generate(k + 1, pack_ids([k, *PROMPT]), sampling))
    rig.run()

    assert rig.replica.stats.counters["retracted_requests"] > 0
    outputs = [join.sampling.output for plan in plans(rig) for join in plan.joins]
    assert sum(not output for output in outputs) == 4
    known = [rig.tokens(k + 1) for k in range(4)]
    for output in filter(None, outputs):
        tokens = unpacked(output, INT32).tolist()
        assert any(tokens == told[: len(tokens)] for told in known)
    assert len(outputs) > 4


def test_masks_travel_when_they_are_others_than_before() -> None:
    grammars = FakeGrammars(50)
    rig = Rig(AMPLE, grammars=grammars, chunk=-1)
    first, second = rig.send(PROMPT, 9, grammar=A), rig.send(PROMPT[::-1], 9, grammar=A)
    rig.turn_until(lambda: bool(grammars.answer() or rig.plans))
    requests = [rig.request(first), rig.request(second)]
    builder, rows = rig.replica._builder, rig.replica.sets.decoding.plan()
    plan = builder.build(rows, step=1, decoding=2)
    masks = [np.full(2, k, dtype=np.int32) for k in range(2)]
    for request, mask in zip(requests, masks, strict=True):
        assert request.constraint is not None
        request.constraint.allowed = mask

    command = builder.sample(plan, rows, kept=[])
    assert [(m.line, m.words) for m in command.masks] == [
        (r.row, mask.tobytes()) for r, mask in zip(requests, masks, strict=True)
    ]
    assert builder.sample(plan, rows, kept=[]).masks == []
    assert requests[1].constraint is not None
    requests[1].constraint.allowed = masks[1].copy()
    late = builder.sample(plan, rows, kept=[requests[0]])
    assert [m.line for m in late.masks] == [requests[1].row]
    assert unpacked(late.keep, INT32).tolist() == [requests[0].row]
    again = builder.sample_kept([requests[0]])
    assert (again.lines, again.masks) == (late.keep, [])


def test_a_plan_is_the_same_on_the_other_side_of_a_wire() -> None:
    rig = Rig(AMPLE)
    rig.send(PROMPT, 5, logprobs=Logprobs(2, 3, (1, 2)))
    rig.send(PROMPT, 5, min_new=2)
    rig.run()

    for plan in plans(rig):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=StepPlan) == plan
