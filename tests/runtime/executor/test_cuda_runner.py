"""Steps on the network over fused ops: graphs, feeding, and results that are asked for late.

On a CUDA device where there is one, else on the CPU, where graphs are stood in for.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from layers.forward_batch import ForwardBatch, Forwarded
from mem_cache.pools import KvPools
from mem_cache.spec import TreeSpec
from runtime.executor.cuda_runner import CudaModelRunner, CudaStep
from runtime.executor.step_plan import Phase, StepPlan
from runtime.grammar.output import GrammarOutput
from tests.testing.fused_rig import DEVICE, ROWS, SIZES, FusedRig, new_capture
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
    return [rig.tokens(request) for request in asked], rig.plans


def launch(runner: CudaModelRunner, plan: StepPlan) -> CudaStep:
    """Return a step that was launched and sampled."""
    step = runner.launch(plan)
    assert not step.sample()
    return step


def copied(plans: list[StepPlan]) -> list[StepPlan]:
    """Return the plans with fresh samplings, which have said nothing yet."""
    made: list[StepPlan] = []
    for plan in plans:
        samples = [dataclasses.replace(sample, output=[]) for sample in plan.samples]
        made.append(dataclasses.replace(plan, samples=samples))
    return made


def ahead(plans: list[StepPlan]) -> list[StepPlan]:
    """Return the plans as they are when each is launched before the one before it is settled."""
    made = copied(plans)
    for plan in made:
        if plan.phase is Phase.DECODE:
            plan.feed = np.arange(len(plan.input_ids))
            plan.input_ids = np.zeros_like(plan.input_ids)
    return made


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
    assert any(8 < len(plan.input_ids) < 32 for plan in plans if plan.phase is Phase.PREFILL)


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

    monkeypatch.setattr("runtime.executor.cuda_runner.as_decode", lambda plan: None)
    assert [*ask_twice(exact.runner(*graphs))] == told


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
    assert [len(plan.input_ids) for plan in rig.plans[begun:] if plan.phase is Phase.PREFILL] == [4]
    rig.assert_conserved()


def test_a_chunk_cannot_be_fed(fused: FusedRig) -> None:
    _, plans = serve(fused.runner(), (20, 30), 2)
    first, chunks = ahead([plans[1], plans[0]])
    runner = fused.runner()
    first.feed, first.input_ids = None, plans[1].input_ids
    launch(runner, first)
    chunks.feed = np.zeros(2, dtype=np.int64)

    with pytest.raises(ValueError, match="more than one token"):
        launch(runner, chunks)


def test_one_graph_is_replayed_at_three_lengths(fused: FusedRig) -> None:
    """Positions, pages and rings differ; the graph, and the buffers it reads, do not."""
    replayed, plain = fused.runner(2), fused.runner()
    # The third one in the middle of a page; on the CPU not for as long.
    for length in (5, 254, 520 if DEVICE.type == "cuda" else 300):
        _, plans = serve(fused.runner(), (length, length + 1), 4)
        for plan in plans:
            one, other = (launch(runner, copied([plan])[0]) for runner in (replayed, plain))
            torch.testing.assert_close(one._logits, other._logits, rtol=0.02, atol=0.02)
            assert one.result().token_ids == other.result().token_ids


@pytest.mark.parametrize("graphs", [(), (4,), (1, 3)])
def test_steps_fed_from_the_one_before_give_the_same_tokens(
    fused: FusedRig, graphs: tuple[int, ...]
) -> None:
    tokens, plans = serve(fused.runner(*graphs), (20, 70, 130), 6)
    runner = fused.runner(*graphs)

    steps = [launch(runner, plan) for plan in ahead(plans)]
    told = [step.result() for step in steps]

    assert len(plans) == 6
    assert [list(row) for row in zip(*(result.token_ids for result in told), strict=True)] == tokens
    assert all(result.failed == [None] * 3 for result in told)


def test_a_row_may_be_fed_beside_one_that_is_not(fused: FusedRig) -> None:
    tokens, plans = serve(fused.runner(4), (20, 70), 4)
    first, second, third, *_ = ahead(plans)
    runner = fused.runner(4)
    second.feed, second.input_ids = np.array([-1, 1]), plans[1].input_ids
    third.feed = np.array([1, 0])

    launch(runner, first)
    told = [launch(runner, second).result().token_ids]
    # Each row takes the other's token: not what it said, but what it was fed with is another.
    swapped = launch(runner, third)._logits.argmax(-1).tolist()

    assert told == [[row[1] for row in tokens]]
    assert swapped != [row[2] for row in tokens]


def test_no_step_is_launched_over_the_logits_of_one_that_was_not_sampled(fused: FusedRig) -> None:
    _, plans = serve(fused.runner(), (20,), 3)
    runner = fused.runner()
    first, second, _ = ahead(plans)
    step = runner.launch(first)

    with pytest.raises(ValueError, match="was not sampled"):
        runner.launch(second)
    with pytest.raises(ValueError, match="was not sampled"):
        step.result()
    step.sample()
    launch(runner, second)


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
    first, second, _ = (launch(runner, plan) for plan in ahead(plans))

    assert first.result().failed == ["logits are not finite", None]
    assert first.result().token_ids == [0, tokens[1][0]]
    assert second.result().token_ids[1] == tokens[1][1]


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
        assert any(plan.feed is not None for plan in chunks) == overlap
        rig.assert_conserved()
        told.append([rig.tokens(request) for request in (*first, *second)])

    assert told[0] == told[1]


def forbidding(token: int, vocab: int) -> GrammarOutput:
    """Return an output that may not say one token before its grammar begins."""
    bits = np.ones(-(-vocab // 32) * 32, dtype=np.uint8)
    bits[token] = 0
    free = np.packbits(bits, bitorder="little").view("<i4")
    output = GrammarOutput(1, vocab, free, accept=lambda token: None)
    output.mask(free)
    return output


@pytest.mark.gpu
def test_on_the_gpu_decode_steps_are_launched_without_waiting(fused: FusedRig) -> None:
    tokens, plans = serve(fused.runner(4), (20, 70, 130), 8)
    runner = fused.runner(4)
    prefill, first, *rest = ahead(plans)
    vocab = fused.config.vocab_size
    unsaid = next(token for token in range(vocab) if token not in tokens[0])
    for plan in (prefill, first, *rest):
        plan.samples[0].constraint = forbidding(unsaid, vocab)
    steps = [launch(runner, prefill), launch(runner, first)]
    slow = torch.randn(8192, 8192, device=DEVICE)
    torch.cuda.set_sync_debug_mode("error")
    try:
        # Most of a second, also for a host that has much else to do.
        for _ in range(32):
            slow = slow @ slow * 1e-4
        # With the one before them, as many steps as the buffers stage at once.
        steps += [launch(runner, plan) for plan in rest[:2]]
        in_flight = not steps[-1].forwarded
    finally:
        torch.cuda.set_sync_debug_mode("default")
    steps += [launch(runner, plan) for plan in rest[2:]]

    told = [step.result().token_ids for step in steps]
    assert in_flight
    assert all(step.forwarded for step in steps)
    assert [list(row) for row in zip(*told, strict=True)] == tokens


@pytest.mark.gpu
def test_on_the_gpu_a_prefill_step_is_halfway_when_the_device_is(fused: FusedRig) -> None:
    _, plans = serve(fused.runner(4), (20, 70, 130), 3)
    runner = fused.runner(4)
    prefill, decode = ahead(plans)[:2]
    slow = torch.randn(8192, 8192, device=DEVICE)
    for _ in range(32):
        slow = slow @ slow * 1e-4
    step = launch(runner, prefill)
    early = not step.halfway
    after = launch(runner, decode)

    assert after.halfway  # whoever comes later waits for a token's time at most
    step.result()
    assert early
    assert step.halfway
    after.result()
