"""Steps of rows that follow grammars, on the network over fused ops: held, kept, and run ahead."""

import numpy as np
import pytest

from mem_cache.spec import TreeSpec
from runtime.grammar.output import GrammarOutput
from runtime.messages import Grammar
from tests.runtime.executor.test_cuda_runner import ahead, copied, prompt, serve
from tests.testing.fake_grammars import FakeGrammars
from tests.testing.fused_rig import ROWS, SIZES, FusedRig
from tests.testing.scheduler_rig import Rig

pytestmark = pytest.mark.usefixtures("dense_weights_once")


def test_a_row_kept_from_a_step_sampled_ahead_outlives_the_next_replay(fused: FusedRig) -> None:
    tokens, plans = serve(fused.runner(2), (20, 70), 4)
    runner = fused.runner(2)
    prefill, decode, *others = ahead(plans)
    first, second = runner.launch(prefill), runner.launch(decode)
    kept = [first.keep(0), second.keep(1)]
    steps = [first, second, *(runner.launch(plan) for plan in others)]

    assert runner.sample(kept).token_ids == [tokens[0][0], tokens[1][1]]
    told = [step.result().token_ids for step in steps]
    assert [list(row) for row in zip(*told, strict=True)] == tokens


def test_rows_without_a_mask_are_held_and_sampled_later(fused: FusedRig) -> None:
    tokens, plans = serve(fused.runner(2), (20, 70), 3)
    runner = fused.runner(2)
    prefill, decode, last = copied(plans)
    runner.launch(prefill).result()
    words = -(-fused.config.vocab_size // 32)
    output = GrammarOutput(1, None, np.zeros(0, np.int32), accept=lambda token: None)
    decode.samples[1].constraint = output

    result = runner.launch(decode).result()
    runner.launch(last).result()
    output.mask(np.full(words, -1, np.int32))

    assert result.token_ids == [tokens[0][1], 0]
    assert runner.sample([result.held[1]]).token_ids == [tokens[1][1]]


def test_a_grammar_row_is_not_sampled_ahead(fused: FusedRig) -> None:
    _, plans = serve(fused.runner(), (20,), 2)
    plan = ahead(plans)[0]
    output = GrammarOutput(1, None, np.zeros(0, np.int32), accept=lambda token: None)
    plan.samples[0].constraint = output

    with pytest.raises(ValueError, match="needs the host"):
        fused.runner().launch(plan)


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
        assert any(plan.sample_ahead for plan in rig.plans) == overlap
        told.append([rig.tokens(request) for request in asked])

    assert told[0] == told[1]
    for begun, tokens in ((free[0][5], told[1][0]), (free[1][0], told[1][1])):
        ruled = tokens[tokens.index(begun) + 1 :]
        assert len(ruled) > 3
        assert all(token % 2 == 0 for token in ruled)
