"""Outputs whose grammar begins amid them, with a step in flight: nobody can tell."""

import numpy as np

from runtime.messages import Grammar
from tests.runtime.scheduler.test_overlap import VOCAB, overlapping, prompt_of
from tests.testing.fake_grammars import FakeGrammars
from tests.testing.token_runner import expected_output, ruled_output


def test_a_grammar_that_begins_amid_an_output_rules_what_follows() -> None:
    mask = np.array([0x33333333, 0x33333333], dtype=np.int32)
    grammars = FakeGrammars(VOCAB)
    grammars.instant, grammars.allowed = True, mask
    rig = overlapping(grammars=grammars, rows=4)
    prompt, other = prompt_of(2, 9), prompt_of(3, 9)
    free = expected_output(prompt, 12, VOCAB)
    after = next(token for k, token in enumerate(free) if k > 6 and token not in free[:k])
    ruled = rig.send(prompt, 20, grammar=Grammar("regex", "a", after=after, may_end=True))
    never = rig.send(other, 30, grammar=Grammar("regex", "a", after=VOCAB + 1, may_end=True))
    rig.run()

    wanted = ruled_output(prompt, 20, VOCAB, after=after, mask=mask)
    assert wanted != expected_output(prompt, 20, VOCAB)
    assert rig.tokens(ruled) == wanted
    assert grammars.accepted[ruled] == wanted[wanted.index(after) + 1 : -1]
    assert rig.tokens(never) == expected_output(other, 30, VOCAB)
    assert rig.runner.overlapped == rig.runner.steps - 1
    rig.assert_conserved()
