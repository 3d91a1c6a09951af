"""Steps of rows that follow grammars, on the network over fused ops: kept, and in flight."""

import msgspec
import numpy as np
import pytest
import torch

from mem_cache.spec import TreeSpec
from runtime.messages import Grammar
from runtime.wire.arrays import INT32, packed, unpacked
from runtime.wire.step import Sample
from tests.runtime.executor.test_cuda_runner import prompt, serve
from tests.testing.fake_grammars import FakeGrammars
from tests.testing.fused_rig import ROWS, SIZES, FusedRig
from tests.testing.plans import (
    PlannedRow,
    Plans,
    entry_tokens,
    fed,
    line_sampling,
    mask,
    sample_kept,
)
from tests.testing.scheduler_rig import Rig

pytestmark = pytest.mark.usefixtures("dense_weights_once")


def test_kept_rows_are_sampled_after_the_next_replay(fused: FusedRig) -> None:
    """Their logits are not those that the next step writes to the same place."""
    tokens, (prefill, decode, last) = serve(fused.runner(2), (20, 70), 3)
    lines = unpacked(decode.sampled, INT32, -1, 2)[:, 1].tolist()
    runner = fused.runner(2)
    runner.run(prefill)

    step = runner.launch(msgspec.structs.replace(decode, sampling=None))
    step.sample(Sample(decode.step, keep=packed(lines[1:], INT32)))
    result = step.result()
    runner.run(last)
    later = runner.sample_kept(sample_kept(lines[1]))

    assert entry_tokens(result) == [[tokens[0][1]], []]
    assert entry_tokens(later) == [[tokens[1][1]]]


def test_kept_rows_follow_the_mask_that_comes_late(fused: FusedRig) -> None:
    runner, plans, vocab = fused.runner(2), Plans(fused.tree), fused.config.vocab_size
    rows = [PlannedRow(line, 0, prompt(20 + line, line)) for line in range(2)]
    ruled = line_sampling(constrained=True)
    plan = plans.plan(*rows, joins={0: line_sampling(), 1: ruled}, sampled_later=True)
    step = runner.launch(plan)
    step.sample(Sample(1, keep=packed([1], INT32)))
    [[token], none] = entry_tokens(step.result())

    first = runner.sample_kept(sample_kept(1, masks=[mask(1, (77,), vocab)]))
    after = plans.plan(PlannedRow(0, 20, [token]), PlannedRow(1, 21, [77]))
    second = runner.run(fed(after))

    assert (none, entry_tokens(first)) == ([], [[77]])
    # The mask holds until another one comes.
    assert entry_tokens(second)[1] == [77]


def test_a_grammar_that_begins_in_flight_says_the_same_as_without_overlap(exact: FusedRig) -> None:
    vocab = exact.config.vocab_size
    even = np.full(-(-vocab // 32), 0x55555555, dtype=np.int32)
    free, _ = serve(exact.runner(4), (20, 70), 8)
    told: list[list[list[int]]] = []
    for overlap in (False, True):
        grammars = FakeGrammars(vocab)
        grammars.instant, grammars.allowed = True, even
        rig = Rig(
            SIZES,
            spec=TreeSpec(),
            rows=ROWS,
            runner=exact.runner(1, 2, 4),
            overlap=overlap,
            grammars=grammars,
            chunk=2048,
        )
        asked = [
            rig.send(prompt(length, k), 14, ignore_eos=True, grammar=grammar)
            for k, (length, grammar) in enumerate(
                (
                    (20, Grammar("regex", "a", after=free[0][5], may_end=True)),
                    (70, Grammar("regex", "a", after=free[1][0], may_end=True)),
                    (40, None),
                )
            )
        ]
        rig.run()
        rig.assert_conserved()
        assert any(plan.feed.any() for plan in rig.plans) == overlap
        told.append([rig.tokens(request) for request in asked])

    assert told[0] == told[1]
    for begun, tokens in ((free[0][5], told[1][0]), (free[1][0], told[1][1])):
        ruled = tokens[tokens.index(begun) + 1 :]
        assert len(ruled) > 3
        assert all(token % 2 == 0 for token in ruled)


@pytest.mark.gpu
def test_on_the_gpu_rows_are_kept_without_waiting(fused: FusedRig) -> None:
    tokens, plans = serve(fused.runner(2), (20, 70), 5)
    prefill, *decodes = plans
    runner = fused.runner(2)
    lines = unpacked(prefill.sampled, INT32, -1, 2)[:, 1].tolist()
    runner.run(prefill)
    told: list[list[list[int]]] = []
    for plan in decodes:
        # The first one loads kernels, which waits.
        torch.cuda.set_sync_debug_mode("error" if told else "default")
        try:
            step = runner.launch(msgspec.structs.replace(plan, sampling=None))
            step.sample(Sample(plan.step, keep=packed(lines[1:], INT32)))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        [first, _] = entry_tokens(step.result())
        [second] = entry_tokens(runner.sample_kept(sample_kept(lines[1])))
        told.append([first, second])

    assert told == [[[one], [two]] for one, two in zip(tokens[0][1:], tokens[1][1:], strict=True)]
