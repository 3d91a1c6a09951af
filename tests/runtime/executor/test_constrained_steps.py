"""Steps of rows that follow grammars, on the network over fused ops: held, and in flight."""

import numpy as np
import pytest

from mem_cache.spec import TreeSpec
from runtime.grammar.output import GrammarOutput
from runtime.messages import Grammar
from tests.runtime.executor.test_cuda_runner import copied, launch, prompt, serve
from tests.testing.fake_grammars import FakeGrammars
from tests.testing.fused_rig import ROWS, SIZES, FusedRig
from tests.testing.scheduler_rig import Rig

pytestmark = pytest.mark.usefixtures("dense_weights_once")


def test_rows_without_a_mask_are_held_and_sampled_after_the_next_replay(fused: FusedRig) -> None:
    tokens, plans = serve(fused.runner(2), (20, 70), 3)
    runner = fused.runner(2)
    prefill, decode, last = copied(plans)
    launch(runner, prefill).result()
    words = -(-fused.config.vocab_size // 32)
    output = GrammarOutput(1, None, np.zeros(0, np.int32), accept=lambda token: None)
    decode.samples[1].constraint = output

    step = runner.launch(decode)
    held = step.sample()
    result = step.result()
    launch(runner, last).result()
    output.mask(np.full(words, -1, np.int32))

    assert list(held) == [1]
    assert result.token_ids[0] == tokens[0][1]
    assert runner.sample([held[1]]).token_ids == [tokens[1][1]]


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
        assert any(plan.feed is not None for plan in rig.plans) == overlap
        told.append([rig.tokens(request) for request in asked])

    assert told[0] == told[1]
    for begun, tokens in ((free[0][5], told[1][0]), (free[1][0], told[1][1])):
        ruled = tokens[tokens.index(begun) + 1 :]
        assert len(ruled) > 3
        assert all(token % 2 == 0 for token in ruled)
