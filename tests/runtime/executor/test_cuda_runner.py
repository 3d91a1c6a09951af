"""Steps on the network over fused ops: graphs, feeding, and results that are asked for late.

On a CUDA device where there is one, else on the CPU, where graphs are stood in for.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from layers.models.deepseek_v4.pools import KvPools
from layers.steps.forward_batch import ForwardBatch, Forwarded
from mem_cache.spec import TreeSpec
from runtime.executor.cuda_runner import CudaModelRunner
from runtime.executor.plan_rows import PlanRows
from runtime.wire.arrays import INT32, INT64, UINT8, packed, unpacked
from runtime.wire.step import Join, LineSampling, Sample, Saves, StepPlan, StepResult
from tests.testing.fused_rig import DEVICE, ROWS, SIZES, FusedRig, new_capture
from tests.testing.plans import PlannedRow, Plans, entry_tokens, failures, fed, line_sampling, mask
from tests.testing.scheduler_rig import Rig

pytestmark = pytest.mark.usefixtures("dense_weights_once")


# Without graphs, too, where there are any: on the CPU they are stood in for by what they hold.
FEW_GRAPHS = [(), (4,)] if DEVICE.type == "cuda" else [(4,)]


def prompt(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(2, 500, size=length).tolist()


def serve(
    runner: CudaModelRunner, lengths: tuple[int, ...], new: int
) -> tuple[list[list[int]], list[StepPlan]]:
    """Return the tokens of prompts of these lengths, and the plans of the steps that gave them."""
    rig = Rig(SIZES, spec=TreeSpec(), rows=ROWS, chunk=2048, runner=runner, overlap=False)
    asked = [rig.send(prompt(length, k), new, ignore_eos=True) for k, length in enumerate(lengths)]
    rig.run()
    return [rig.tokens(request) for request in asked], [plan.plan for plan in rig.plans]


def ahead(plans: list[StepPlan]) -> list[StepPlan]:
    """Return the plans as they are when each is launched before the one before it is settled."""
    prefill, *decodes = plans
    return [prefill, *map(fed, decodes)]


def by_row(results: list[StepResult]) -> list[list[int]]:
    """Return the tokens of each row of steps of the same rows."""
    each = [[token for [token] in entry_tokens(result)] for result in results]
    return [list(row) for row in zip(*each, strict=True)]


@pytest.mark.parametrize("graphs", [(1, 4), (3,), (2,)])
def test_graphs_change_no_token(fused: FusedRig, graphs: tuple[int, ...]) -> None:
    """Three rows run padded, as they are, or without the graph that is too small."""
    plain, _ = serve(fused.runner(), (20, 70, 130), 5)

    assert serve(fused.runner(*graphs), (20, 70, 130), 5)[0] == plain


def test_prefill_steps_of_several_rows_run_in_pieces_and_say_the_same(fused: FusedRig) -> None:
    plain, plans = serve(fused.runner(), (3, 9, 14), 5)
    fused.network.capture_prefill((8, 32), new_capture())
    try:
        told, _ = serve(fused.runner(4), (3, 9, 14), 5)
    finally:
        fused.network.capture_prefill((), new_capture())

    assert told == plain
    rows = [PlanRows.of(plan.rows) for plan in plans]
    assert any(8 < len(step.ids) < 32 for step in rows if len(step.ids) > len(step.line))


def ask_twice(runner: CudaModelRunner) -> Iterator[list[list[int]]]:
    """Yield the tokens of prompts, of the same prompts again, and of some that go on from them."""
    rig = Rig(SIZES, spec=TreeSpec(), rows=ROWS, chunk=2048, runner=runner, overlap=True)
    texts = [prompt(length, length) for length in (20, 256, 257)]
    longer = [[*texts[0], 7, 8], [*texts[1], 9], [*texts[2], 5, 6, 7]]
    for asked, cached in ((texts, [0, 0, 0]), (texts, [19, 255, 256]), (longer, [20, 256, 257])):
        requests = [rig.send(text, 6, ignore_eos=True) for text in asked]
        rig.run()
        assert [rig.cached(request) for request in requests] == cached
        yield [rig.tokens(request) for request in requests]
    rig.assert_conserved()


@pytest.mark.parametrize("graphs", FEW_GRAPHS)
def test_prompts_that_are_cached_but_for_their_last_token_decode(
    exact: FusedRig, graphs: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []
    prefill = exact.network.prefill

    def counted(batch: ForwardBatch, pools: KvPools, **options: Any) -> Forwarded:
        computed.append(len(batch.input_ids))
        return prefill(batch, pools, **options)

    monkeypatch.setattr(exact.network, "prefill", counted)
    told: list[list[list[int]]] = []
    for tokens in ask_twice(exact.runner(*graphs)):
        told.append(tokens)
        computed.append(0)
    # Cold, then nothing, then what is new, from the points that decoding has left.
    assert computed == [20 + 256 + 257, 0, 0, 2 + 1 + 3, 0]

    monkeypatch.setattr("runtime.executor.cuda_runner.is_single_token_step", lambda *_: False)
    assert [*ask_twice(exact.runner(*graphs))] == told


def test_a_single_token_leaves_the_resume_points_that_are_wanted_behind_it(
    exact: FusedRig,
) -> None:
    runner, plans = exact.runner(4), Plans(TreeSpec(), lines=2)
    text = prompt(20, 3)
    row = PlannedRow(0, 0, text)
    (token,) = entry_tokens(runner.run(plans.plan(row, joins={0: line_sampling()})))[0]
    single = plans.plan(PlannedRow(0, len(text), [token]))
    # The ring and the window of the other line.
    width = plans.tree.window_pages
    saves = Saves(
        row=packed([0], INT32),
        position=packed([len(text) + 1], INT64),
        state=packed([2], INT32),
        window=packed(range(width + 1, 2 * width + 1), INT32),
    )

    runner.run(msgspec.structs.replace(single, saves=saves))

    pools = runner._pools
    assert isinstance(pools, KvPools)
    for state in (pools.c4_state, pools.c128_state):
        assert torch.equal(state[:, 2].view(torch.uint8), state[:, 1].view(torch.uint8))
    # 21 tokens lie in the window's first page.
    assert torch.equal(pools.swa[:, width + 1], pools.swa[:, 1])


@pytest.mark.parametrize("graphs", FEW_GRAPHS)
def test_cached_prompts_that_join_rows_in_flight_say_the_same(
    exact: FusedRig, graphs: tuple[int, ...]
) -> None:
    _, again, _ = ask_twice(exact.runner(*graphs))
    runner = exact.runner(*graphs)
    rig = Rig(SIZES, spec=TreeSpec(), rows=ROWS, chunk=2048, runner=runner, overlap=True)
    texts = [prompt(length, length) for length in (20, 256, 257)]
    for text in texts:
        rig.send(text, 6, ignore_eos=True)
    rig.run()
    talker = rig.send(prompt(30, 1), 30, ignore_eos=True)
    rig.turn_until(lambda: len(rig.tokens(talker)) == 4)
    begun = len(rig.plans)
    beside = [rig.send(text, 6, ignore_eos=True) for text in texts]
    rig.run()

    assert [rig.tokens(request) for request in beside] == again
    # They are a token each, beside the one that decodes.
    assert max(len(plan.input_ids) for plan in rig.plans[begun:]) == 4
    assert all((plan.chunk_len == 1).all() for plan in rig.plans[begun:])
    rig.assert_conserved()


def test_a_chunk_may_begin_with_a_token_of_the_device(fused: FusedRig) -> None:
    """Alone, and beside a row that is a token of the host's."""
    tail, told = prompt(9, 3), list[list[list[int]]]()
    for from_device in (False, True):
        runner, plans = fused.runner(4), Plans(fused.tree)
        joins = dict.fromkeys(range(2), line_sampling())
        starts = [PlannedRow(line, 0, prompt(20 + line, line)) for line in range(2)]
        [[first], [second]] = entry_tokens(runner.run(plans.plan(*starts, joins=joins)))
        plan = plans.plan(PlannedRow(1, 21, [second]), PlannedRow(0, 20, [first, *tail]))
        told.append(entry_tokens(runner.run(fed(plan, 1) if from_device else plan)))

    assert told[0] == told[1]


def test_one_graph_is_replayed_at_three_lengths(fused: FusedRig) -> None:
    """Positions, pages and rings differ; the graph, and the buffers it reads, do not."""
    replayed, plain = fused.runner(2), fused.runner()
    # Into a second page, and in the middle of one; on the CPU not of the third.
    for length in (5, 254, 520 if DEVICE.type == "cuda" else 130):
        _, plans = serve(fused.runner(), (length, length + 1), 4)
        for plan in plans:
            one, other = (runner.launch(plan) for runner in (replayed, plain))
            torch.testing.assert_close(one._logits, other._logits, rtol=0.02, atol=0.02)
            assert one.result().tokens == other.result().tokens


@pytest.mark.parametrize("graphs", [(), (4,), (1, 3)])
def test_steps_fed_from_the_one_before_give_the_same_tokens(
    fused: FusedRig, graphs: tuple[int, ...]
) -> None:
    tokens, plans = serve(fused.runner(*graphs), (20, 70, 130), 6)
    runner = fused.runner(*graphs)

    steps = [runner.launch(plan) for plan in ahead(plans)]
    told = [step.result() for step in steps]

    assert len(plans) == 6
    assert by_row(told) == tokens
    assert not any(failures(result) for result in told)
    assert all(unpacked(result.finite, UINT8).tolist() == [1] * 3 for result in told)


def test_a_row_may_be_fed_beside_one_that_is_not(fused: FusedRig) -> None:
    tokens, (first, second, third, *_) = serve(fused.runner(4), (20, 70), 4)
    runner = fused.runner(4)

    runner.launch(first)
    told = [runner.run(fed(second, 1))]
    # What is fed is the line's own, whatever was sampled for others.
    last = runner._lines.last
    last[[0, 1]] = last[[1, 0]]
    swapped = runner.run(fed(third))

    assert by_row(told) == [[row[1]] for row in tokens]
    assert by_row([swapped]) != [[row[2]] for row in tokens]


def test_no_step_is_launched_over_the_logits_of_one_that_was_not_sampled(fused: FusedRig) -> None:
    _, plans = serve(fused.runner(), (20,), 3)
    runner = fused.runner()
    first, second, _ = ahead(plans)
    step = runner.launch(msgspec.structs.replace(first, sampling=None))

    with pytest.raises(ValueError, match="was not sampled"):
        runner.launch(second)
    with pytest.raises(ValueError, match="was not sampled"):
        step.result()
    step.sample(Sample(first.step))
    runner.launch(second)


def test_a_row_whose_logits_are_not_finite_fails_alone_also_when_it_feeds(
    fused: FusedRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, plans = serve(fused.runner(), (20, 70), 3)
    runner = fused.runner()
    prefill = fused.network.prefill

    def broken(*given: Any, **options: Any) -> Forwarded:
        made = prefill(*given, **options)
        made.logits[0, 3] = torch.nan
        return made

    monkeypatch.setattr(fused.network, "prefill", broken)
    first, second, _ = (runner.launch(plan) for plan in ahead(plans))

    assert failures(first.result()) == {0: "logits are not finite"}
    assert entry_tokens(first.result()) == [[], [tokens[1][0]]]
    assert unpacked(first.result().finite, UINT8).tolist() == [0, 1]
    assert entry_tokens(second.result())[1] == [tokens[1][1]]


def test_a_row_that_is_not_sampled_says_whether_it_is_finite(
    fused: FusedRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, plans = fused.runner(), Plans(fused.tree)
    prefill = fused.network.prefill

    def broken(*given: Any, **options: Any) -> Forwarded:
        made = prefill(*given, **options)
        made.finite[0] = False
        return made

    monkeypatch.setattr(fused.network, "prefill", broken)
    rows = [PlannedRow(line, 0, prompt(9, line), sampled=line == 1) for line in range(2)]

    result = runner.run(plans.plan(*rows, joins={1: line_sampling()}))

    assert unpacked(result.finite, UINT8).tolist() == [0, 1]
    assert failures(result) == {}
    assert len(entry_tokens(result)[0]) == 1


def test_a_scheduler_that_overlaps_steps_says_the_same(exact: FusedRig) -> None:
    """Rows come and go, stop and go on with a next turn: what is left in the cache is right.

    With overlap some tokens are computed by a decode step that else are part of a chunk.
    """
    told: list[list[list[int]]] = []
    for overlap in (False, True):
        rig = Rig(
            SIZES,
            spec=TreeSpec(),
            rows=ROWS,
            chunk=64,
            runner=exact.runner(1, 2, 4),
            overlap=overlap,
        )
        texts = [prompt(30 + 25 * k, k) for k in range(5)]
        first = [rig.send(text, 3 + k, stop=(k, 100 + k)) for k, text in enumerate(texts)]
        rig.run()
        nexts = [[*text, *rig.tokens(r), 7] for text, r in zip(texts, first, strict=True)]
        second = [rig.send(text, 4, ignore_eos=True) for text in nexts]
        rig.run()
        cached = [rig.cached(request) for request in second]
        lost = [len(text) - 1 - count for text, count in zip(nexts, cached, strict=True)]
        # With overlap the last token of an answer is fed, too, if need be beside chunks.
        assert set(lost) == ({0} if overlap else {1})
        chunks = [plan for plan in rig.plans if (plan.chunk_len > 1).any()]
        assert any(plan.feed.any() for plan in chunks) == overlap
        rig.assert_conserved()
        told.append([rig.tokens(request) for request in (*first, *second)])

    assert told[0] == told[1]


@pytest.mark.parametrize("right", [0, 1])
def test_drafts_change_no_token(exact: FusedRig, right: int) -> None:
    """Nor does a step behind them whose start and first token only the executor knows."""
    runner, plans = exact.runner(), Plans(exact.tree)
    text, joins = prompt(20, 1), {0: line_sampling()}
    plain = entry_tokens(runner.run(plans.plan(PlannedRow(0, 0, text), joins=joins)))[0]
    for k in range(4):
        plain += entry_tokens(runner.run(plans.plan(PlannedRow(0, 20 + k, plain[-1:]))))[0]
    runner, plans = exact.runner(4), Plans(exact.tree)
    draft = plain[1] if right else (plain[1] + 1) % exact.config.vocab_size

    steps = [
        runner.launch(plan)
        for plan in (
            plans.plan(PlannedRow(0, 0, text), joins=joins),
            plans.plan(PlannedRow(0, 20, [0, draft], from_device=1, drafts=1)),
            plans.plan(PlannedRow(0, 22, [0], from_device=2)),
        )
    ]

    runs = [entry_tokens(step.result())[0] for step in steps]
    assert [len(run) for run in runs] == [1, 1 + right, 1]
    assert [token for run in runs for token in run] == plain[: 3 + right]


def ruled(plan: StepPlan, unsaid: int, vocab: int) -> StepPlan:
    """Return a plan whose first line may not say one token, and is told so once."""

    def constrained(sampling: LineSampling) -> LineSampling:
        return msgspec.structs.replace(sampling, constrained=True)

    joins = [Join(j.line, constrained(j.sampling)) if j.line == 0 else j for j in plan.joins]
    allowed = mask(0, (token for token in range(vocab) if token != unsaid), vocab)
    sampling = Sample(plan.step, [allowed] if plan.joins else [])
    return msgspec.structs.replace(plan, joins=joins, sampling=sampling)


@pytest.mark.gpu
def test_on_the_gpu_decode_steps_are_launched_without_waiting(fused: FusedRig) -> None:
    tokens, plans = serve(fused.runner(4), (20, 70, 130), 8)
    runner = fused.runner(4)
    vocab = fused.config.vocab_size
    lines = unpacked(plans[0].sampled, INT32, -1, 2)[:, 1].tolist()
    said = tokens[lines.index(0)]
    unsaid = next(token for token in range(vocab) if token not in said)
    prefill, first, *rest = (ruled(plan, unsaid, vocab) for plan in ahead(plans))
    steps = [runner.launch(prefill), runner.launch(first)]
    slow = torch.randn(8192, 8192, device=DEVICE)
    torch.cuda.set_sync_debug_mode("error")
    try:
        # Most of a second, also for a host that has much else to do.
        for _ in range(32):
            slow = slow @ slow * 1e-4
        # With the one before them, as many steps as the buffers stage at once.
        steps += [runner.launch(plan) for plan in rest[:2]]
        in_flight = not steps[-1].forwarded
    finally:
        torch.cuda.set_sync_debug_mode("default")
    steps += [runner.launch(plan) for plan in rest[2:]]

    told = [step.result() for step in steps]
    assert in_flight
    assert all(step.forwarded for step in steps)
    assert by_row(told) == tokens


@pytest.mark.gpu
def test_on_the_gpu_a_prefill_step_is_halfway_when_the_device_is(fused: FusedRig) -> None:
    _, plans = serve(fused.runner(4), (20, 70, 130), 3)
    runner = fused.runner(4)
    prefill, decode = ahead(plans)[:2]
    slow = torch.randn(8192, 8192, device=DEVICE)
    for _ in range(32):
        slow = slow @ slow * 1e-4
    step = runner.launch(prefill)
    early = not step.halfway
    after = runner.launch(decode)

    assert after.halfway  # whoever comes later waits for a token's time at most
    step.result()
    assert early
    assert step.halfway
    after.result()
