"""Rows whose masks are late: computed once, in nobody's way, and sampled when the masks come."""

import random
from collections.abc import Sequence

import pytest

from mem_cache.spec import PoolSizes
from runtime.executor.interface import StepHandle
from runtime.grammar.output import GrammarOutput
from runtime.messages import Grammar
from runtime.scheduler.grammar_gate import IDLE_S, LOOK_S
from runtime.scheduler.request import Request
from runtime.wire.step import (
    NOT_FINITE_REASON,
    KeptResult,
    Sample,
    SampleKept,
    StepPlan,
    StepResult,
)
from tests.testing.fake_grammars import FakeGrammars
from tests.testing.scheduler_rig import SMALL, Rig
from tests.testing.token_runner import TokenRunner, expected_output

pytestmark = pytest.mark.usefixtures("either_way")

SIZES = PoolSizes(full_pages=60, swa_pages=80, states=30)
VOCAB = 50
A = Grammar("regex", "a")
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture
def grammars() -> FakeGrammars:
    return FakeGrammars(VOCAB)


@pytest.fixture
def rig(grammars: FakeGrammars) -> Rig:
    return Rig(SIZES, grammars=grammars, vocab=VOCAB)


def decoded(rig: Rig) -> list[int]:
    """Return the number of rows of each decode step so far."""
    return [len(plan.sampled) for plan in rig.plans if plan.decodes]


def test_a_row_whose_mask_is_late_is_computed_once_and_sampled_when_it_comes(
    rig: Rig, grammars: FakeGrammars, either_way: bool
) -> None:
    slow, free = rig.send(PROMPT, new=4, grammar=A), rig.send([7, 7, 7], new=30)
    rig.scheduler.turn()
    grammars.answer()
    rig.turn_until(lambda: len(rig.tokens(free)) == 10)
    assert len(rig.tokens(slow)) == 1
    assert decoded(rig).count(2) == 1
    assert rig.request(slow).committed == rig.request(slow).total

    grammars.answer()
    rig.turn_until(lambda: len(rig.tokens(slow)) == 2)
    rig.scheduler.turn()
    assert decoded(rig).count(2) == 2

    grammars.instant = True
    rig.run()
    assert rig.tokens(slow) == expected_output(PROMPT, 4, VOCAB)
    assert rig.tokens(free) == expected_output([7, 7, 7], 30, VOCAB)
    # With steps in flight, the last token of either is fed as well.
    assert rig.runner.computed_tokens == len(PROMPT) + 3 + 3 + 29 + 2 * either_way
    assert grammars.untold == []
    rig.assert_conserved()


def test_no_step_is_launched_while_every_row_waits_for_its_mask(
    rig: Rig, grammars: FakeGrammars
) -> None:
    request = rig.send(PROMPT, new=3, grammar=A)
    rig.scheduler.turn()
    grammars.answer()
    rig.turn_until(lambda: decoded(rig) == [1])

    for _ in range(5):
        rig.scheduler.turn()
    assert decoded(rig) == [1]
    assert grammars.waits[-1] == IDLE_S

    grammars.instant = True
    rig.run()
    assert rig.tokens(request) == expected_output(PROMPT, 3, VOCAB)


class LongPass:
    """A runner whose forward passes go on until asked so often whether they are over."""

    def __init__(self, runner: TokenRunner, looks: int) -> None:
        self._runner = runner
        self._looks = looks

    def launch(self, plan: StepPlan) -> StepHandle:
        """Start a step."""
        return LongStep(self._runner.launch(plan), self._looks)

    def sample_kept(self, command: SampleKept) -> KeptResult:
        """Sample lines whose logits were kept."""
        return self._runner.sample_kept(command)


class LongStep:
    """One of its steps."""

    halfway = True

    def __init__(self, step: StepHandle, looks: int) -> None:
        self._step = step
        self._looks = looks

    @property
    def forwarded(self) -> bool:
        self._looks -= 1
        return self._looks < 0

    def sample(self, command: Sample) -> None:
        self._step.sample(command)

    def result(self) -> StepResult:
        return self._step.result()


class InThree(FakeGrammars):
    """Each mask comes with the third poll that waits for it."""

    def poll(self, timeout_s: float = 0.0) -> list[GrammarOutput]:
        waited = [wait for wait in self.waits if wait == LOOK_S]
        if timeout_s == LOOK_S and len(waited) % 3 == 2:
            self.answer()
        return super().poll(timeout_s)


def test_masks_that_come_during_the_forward_pass_hold_nobody() -> None:
    grammars = InThree(VOCAB)
    runner = TokenRunner(SMALL, SIZES, vocab=VOCAB)
    rig = Rig(SIZES, grammars=grammars, vocab=VOCAB, runner=LongPass(runner, 4))
    ruled, free = rig.send(PROMPT, new=6, grammar=A), rig.send([7, 7, 7], new=6)
    rig.scheduler.turn()
    grammars.answer()
    rig.turn_until(lambda: len(rig.tokens(ruled)) == 1)

    for tokens in range(2, 6):
        rig.scheduler.turn()
        assert decoded(rig)[-1] == 2
        assert len(rig.tokens(ruled)) == tokens
    rig.run()

    assert rig.tokens(ruled) == expected_output(PROMPT, 6, VOCAB)
    assert rig.tokens(free) == expected_output([7, 7, 7], 6, VOCAB)
    assert grammars.waits.count(LOOK_S) == 3 * 5


def test_a_pass_that_is_over_is_not_held_up_for_a_mask() -> None:
    grammars = FakeGrammars(VOCAB)
    rig = Rig(SIZES, grammars=grammars, vocab=VOCAB)
    rig.send(PROMPT, new=4, grammar=A)
    free = rig.send([7, 7, 7], new=30)
    rig.scheduler.turn()
    grammars.answer()
    rig.turn_until(lambda: bool(decoded(rig)))
    grammars.waits.clear()

    rig.turn_until(lambda: len(rig.tokens(free)) == 20)

    assert set(grammars.waits) == {0.0}


def test_an_abort_of_a_row_that_is_held_frees_it(rig: Rig, grammars: FakeGrammars) -> None:
    slow = rig.send(PROMPT, new=4, grammar=A)
    rig.scheduler.turn()
    grammars.answer()
    rig.turn_until(lambda: decoded(rig) == [1])

    rig.abort(slow)
    rig.run()

    assert len(rig.tokens(slow)) == 1
    rig.assert_conserved()


@pytest.mark.parametrize("seed", range(6))
def test_when_masks_come_changes_no_token_also_under_retraction(seed: int) -> None:
    draw = random.Random(seed)
    sizes = PoolSizes(full_pages=10, swa_pages=40, states=20)
    grammars = FakeGrammars(VOCAB)
    rig = Rig(sizes, grammars=grammars, vocab=VOCAB, context=80)
    asked: list[tuple[int, list[int], int]] = []
    for k in range(8):
        prompt, new = [k, *PROMPT[: draw.randint(2, 8)]], draw.randint(25, 40)
        asked.append((rig.send(prompt, new, grammar=A if k % 4 else None), prompt, new))

    for _ in range(4000):
        if grammars.outputs and draw.random() < 0.6:
            ids = list(grammars.outputs)
            grammars.answer(*draw.sample(ids, draw.randint(1, len(ids))))
        rig.scheduler.turn()
        if not rig.busy:
            break

    assert rig.replica.stats.counters["retracted_requests"] > 0
    for request_id, prompt, new in asked:
        assert rig.tokens(request_id) == expected_output(prompt, new, VOCAB)
    rig.assert_conserved()


def test_a_grammar_that_fails_during_a_step_ends_its_request_after_it(
    rig: Rig, grammars: FakeGrammars
) -> None:
    bad, fine = rig.send(PROMPT, new=9, grammar=A), rig.send([7, 7, 7], new=9)
    gather = rig.replica.gate.gather

    def failing(requests: Sequence[Request], step: StepHandle) -> None:
        if bad in grammars.outputs:
            grammars.fail(bad, "it is slow")
        gather(requests, step)

    rig.replica.gate.gather = failing
    rig.scheduler.turn()
    grammars.answer()
    rig.run()

    last = rig.outputs(bad)[-1]
    assert (last.finish, last.error) == ("error", "it is slow")
    assert rig.tokens(fine) == expected_output([7, 7, 7], 9, VOCAB)
    rig.assert_conserved()


@pytest.mark.parametrize("reason", [NOT_FINITE_REASON, "no mask"])
def test_a_row_whose_kept_logits_give_no_token_fails_alone(
    rig: Rig, grammars: FakeGrammars, reason: str
) -> None:
    held, free = rig.send(PROMPT, new=4, grammar=A), rig.send([7, 7, 7], new=30)
    rig.scheduler.turn()
    grammars.answer()
    rig.turn_until(lambda: len(rig.tokens(free)) == 10)
    first, bad = expected_output(PROMPT, 2, VOCAB)
    rig.runner.fail_tokens, rig.runner.why_failed = {bad}, reason
    grammars.answer()
    rig.turn_until(lambda: rig.outputs(held)[-1].finish is not None)
    rig.runner.fail_tokens = set()
    rig.run()

    last = rig.outputs(held)[-1]
    assert (rig.tokens(held), last.finish, last.error) == ([first], "error", reason)
    assert rig.tokens(free) == expected_output([7, 7, 7], 30, VOCAB)
    rig.assert_conserved()
