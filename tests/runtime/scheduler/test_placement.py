"""Where requests go: to their prefix, away from queues, and to replicas that are idle."""

import random

import numpy as np
import pytest

import runtime.scheduler.placement as placement
from mem_cache.spec import PoolSizes, TreeSpec
from runtime.grammar.output import GrammarOutput
from runtime.messages import Generate, Grammar, Sampling, pack_ids
from runtime.scheduler.request import Request, Status
from tests.bench.bench_host import NoOpRunner
from tests.runtime.scheduler.test_loop import prompt_of
from tests.testing.fake_grammars import FakeGrammars
from tests.testing.joint_rig import JointRig
from tests.testing.scheduler_rig import Rig
from tests.testing.token_runner import expected_output

AMPLE = PoolSizes(full_pages=400, swa_pages=400, states=120)
MASK = np.zeros(1, np.int32)


def test_the_next_turn_goes_where_the_conversation_is() -> None:
    rig = JointRig(AMPLE, 4)
    places: dict[int, int] = {}
    texts = {k: prompt_of(k, 30) for k in range(4)}
    for turn in range(3):
        asked = {k: rig.send(text, 5) for k, text in texts.items()}
        rig.scheduler.turn()
        now = {k: rig.place(request) for k, request in asked.items()}
        rig.run()
        texts = {k: [*texts[k], *rig.tokens(asked[k]), 1 + turn, 2] for k in texts}
        assert not places or now == places
        places = now

    assert sorted(places.values()) == [0, 1, 2, 3]


def test_requests_without_a_prefix_go_where_the_least_is_to_be_computed() -> None:
    rig = JointRig(AMPLE, 2)
    lengths = (350, 90, 90, 90, 90, 90)
    requests = [rig.send(prompt_of(k, n), 3) for k, n in enumerate(lengths)]
    rig.scheduler.turn()

    assert [rig.place(request) for request in requests] == [0, 1, 1, 1, 1, 0]


def test_of_equal_replicas_the_one_with_the_fewest_requests_is_taken() -> None:
    rig = JointRig(AMPLE, 2, rows=8)
    for seed in range(3):
        rig.send(prompt_of(seed, 10), 60)
    rig.turn_until(lambda: sum(len(r.sets.decoding) for r in rig.replicas) == 3)
    fourth = rig.send(prompt_of(9, 10), 3)
    rig.scheduler.turn()

    assert len(rig.replicas[0].sets.by_id) == 2
    assert rig.place(fourth) == 1


def test_a_prefix_is_copied_from_where_its_queue_costs_more() -> None:
    rig = JointRig(AMPLE, 2, rows=8, chunk=100)
    history = prompt_of(1, 100)
    assert rig.ask(history)[0] == 0
    queued = rig.send(prompt_of(2, 150), 2)
    first, last = (rig.send([*history, 1, k], 2) for k in (1, 2))
    rig.scheduler.turn()

    # 150 tokens are queued there, of which a step computes 100; to copy 100 costs as much as 34.
    assert [rig.place(request) for request in (queued, first, last)] == [0, 1, 1]
    rig.run()
    assert rig.tokens(last) == expected_output([*history, 1, 2], 2, 50)
    counters = rig.scheduler.state().counters
    assert (counters["copied_tokens"], counters["elsewhere_tokens"]) == (100, 0)


def test_a_shared_prefix_is_copied_where_many_requests_have_it() -> None:
    rig = JointRig(AMPLE, 2, rows=8)
    shared = prompt_of(1, 60)
    requests: list[int] = []
    for k in range(6):
        requests.append(rig.send([*shared, k], 200))
        rig.turn_until(lambda: not any(r.sets.prefills for r in rig.replicas))

    assert [rig.place(request) for request in requests] == [0, 0, 1, 1, 0, 1]
    assert rig.scheduler.state().counters["copied_tokens"] == 60


def test_samples_of_one_prompt_compute_it_once() -> None:
    joint, solo = JointRig(AMPLE, 4, rows=8), Rig(AMPLE, rows=8)
    prompt = prompt_of(3, 250)
    requests = [joint.send(prompt, 4) for _ in range(6)]
    for _ in range(6):
        solo.send(prompt, 4)
    joint.run()
    solo.run()

    computed = int(solo.replica.stats.counters["computed_prompt_tokens"])
    assert joint.computed == [computed, 0, 0, 0]
    assert all(joint.tokens(r) == expected_output(prompt, 4, 50) for r in requests)


def test_forks_of_a_prompt_that_is_being_computed_join_it() -> None:
    rig = JointRig(AMPLE, 4, rows=8)
    prompt = prompt_of(3, 160)
    first = rig.send(prompt, 4)
    rig.turn_until(lambda: rig.replicas[0].stats.counters["prefill_steps"] == 2)
    forks = [rig.send([*prompt[:120], k], 4) for k in range(3)]
    rig.scheduler.turn()

    assert {rig.place(request) for request in [first, *forks]} == {0}


def test_what_was_pending_is_forgotten_when_requests_end() -> None:
    rig = JointRig(AMPLE, 2)
    prompt = prompt_of(3, 90)
    requests = [rig.send(prompt, 4) for _ in range(6)]
    rig.scheduler.turn()
    assert rig.replicas[0].sets.pending.match(rig.request(requests[0]).prefixes) == 11
    rig.abort(*requests[:3])
    rig.run()

    assert not any(replica.sets.pending._requests for replica in rig.replicas)


def test_without_reuse_only_load_counts() -> None:
    rig = JointRig(AMPLE, 4, reuse=False)
    requests = [rig.send(prompt_of(3, 40), 4) for _ in range(4)]
    rig.scheduler.turn()

    assert sorted(rig.place(request) for request in requests) == [0, 1, 2, 3]


def test_32_conversations_compute_no_more_than_with_one_tree() -> None:
    sizes = PoolSizes(full_pages=6000, swa_pages=1200, states=600)
    spec = TreeSpec(page_size=32, swa_page_size=8, window=16)
    runners = [NoOpRunner() for _ in range(4)]
    rigs = [
        JointRig(sizes, 4, spec=spec, rows=16, chunk=2048, overlap=True, runners=runners),
        Rig(sizes, spec=spec, rows=64, chunk=2048, overlap=True, runner=NoOpRunner()),
    ]
    computed: list[float] = []
    for rig in rigs:
        draw = random.Random(5)
        texts = [prompt_of(k, draw.randrange(300, 900)) for k in range(32)]
        for _ in range(4):
            draw.shuffle(texts)
            requests = [rig.send(text, draw.randrange(1, 12)) for text in texts]
            rig.run()
            texts = [
                [*text, *rig.tokens(request), *draw.choices(range(50), k=draw.randrange(3, 300))]
                for text, request in zip(texts, requests, strict=True)
            ]
        computed.append(rig.scheduler.state().counters["computed_prompt_tokens"])

    assert computed[0] <= computed[1]


def test_a_request_that_finds_no_row_goes_to_an_idle_replica() -> None:
    rig = JointRig(AMPLE, 2, rows=2)
    long = [rig.send(prompt_of(seed, 9), 300) for seed in range(4)]
    waiting = [rig.send(prompt_of(seed, 9), 5) for seed in (5, 6, 7)]
    rig.turn_until(lambda: sum(len(r.sets.decoding) for r in rig.replicas) == 4)
    left = [request for request in long if rig.place(request) == 1]
    assert [rig.place(request) for request in waiting].count(0) > 0
    rig.abort(*left, *(r for r in waiting if rig.place(r) == 1))
    rig.turn_until(lambda: not rig.replicas[0].sets.waiting._requests)

    moved = [r for r in waiting if any(r in x.sets.by_id for x in rig.replicas)]
    rig.run()
    assert moved
    for request in moved:
        assert rig.tokens(request) == expected_output(prompt_of(request, 9), 5, 50)
    rig.assert_conserved()


def test_a_request_with_a_long_prefix_leaves_it_after_some_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placement, "ROW_WAIT_TOKENS", 1)
    rig = JointRig(AMPLE, 2, rows=1)
    history = prompt_of(1, 90)
    assert rig.ask(history)[0] == 0
    rig.send(history, 2000)
    rig.scheduler.turn()
    again = rig.send(history, 5)
    rig.scheduler.turn()
    assert rig.place(again) == 0
    rig.now_s += placement.MOVE_PATIENCE_S
    rig.turn_until(lambda: rig.place(again) == 1)

    rig.turn_until(lambda: again not in rig.replicas[1].sets.by_id)
    assert rig.tokens(again) == expected_output(history, 5, 50)


def test_who_waits_for_a_prefix_in_the_making_is_not_moved() -> None:
    rig = JointRig(AMPLE, 2, rows=4)
    prompt = prompt_of(3, 200)
    requests = [rig.send([*prompt, k], 4) for k in range(3)]
    for _ in range(8):
        rig.now_s += placement.MOVE_PATIENCE_S
        rig.scheduler.turn()

    assert {rig.place(request) for request in requests} == {0}


@pytest.mark.parametrize("grammar", [None, Grammar("json_object")], ids=["free", "by a grammar"])
def test_who_follows_a_grammar_is_not_moved(grammar: Grammar | None) -> None:
    grammars = FakeGrammars(50)
    grammars.instant = True
    rig = JointRig(AMPLE, 2, rows=1, grammars=grammars)
    near, far = (rig.send(prompt_of(seed, 9), 200) for seed in (1, 2))
    rig.turn_until(lambda: sum(len(r.sets.decoding) for r in rig.replicas) == 2)
    late = rig.send(prompt_of(3, 9), 5, grammar=grammar)
    rig.scheduler.turn()
    first = rig.place(late)
    rig.abort(*(r for r in (near, far) if rig.place(r) != first))
    for _ in range(4):
        rig.now_s += placement.MOVE_PATIENCE_S
        rig.scheduler.turn()

    assert (rig.place(late) == first) == (grammar is not None)
    rig.run()
    assert len(rig.tokens(late)) == 5


def test_a_request_that_finds_no_pages_goes_to_an_idle_replica() -> None:
    rig = JointRig(PoolSizes(full_pages=14, swa_pages=80, states=24), 2, rows=3)
    near, far = (rig.send(prompt_of(seed, 70), 30) for seed in (1, 2))
    rig.turn_until(lambda: sum(len(r.sets.decoding) for r in rig.replicas) == 2)
    late = rig.send(prompt_of(3, 60), 5)
    rig.scheduler.turn()
    assert [rig.place(request) for request in (near, far, late)] == [0, 1, 0]
    assert rig.request(late).row < 0
    rig.abort(far)
    rig.turn_until(lambda: bool(rig.outputs(late)))

    assert rig.place(late) == 1
    rig.run()
    assert rig.tokens(late) == expected_output(prompt_of(3, 60), 5, 50)
    rig.assert_conserved()


@pytest.mark.parametrize(
    ("field", "value", "moves"),
    [
        ("passed", 3, True),
        ("status", Status.PREFILL, False),
        ("cached_tokens", 0, False),
        ("constraint", GrammarOutput(1, None, MASK, accept=lambda _: None), False),
        ("copied_to", 8, False),
    ],
)
def test_only_who_never_ran_and_has_nothing_where_it_waits_is_moved(
    field: str, value: object, moves: bool
) -> None:
    rig = JointRig(AMPLE, 2)
    request = Request(Generate(1, pack_ids([1, 2]), Sampling(4, seed=0)), (), 0.0)
    setattr(request, field, value)

    assert placement._can_move(request, rig.replicas[0]) == moves
