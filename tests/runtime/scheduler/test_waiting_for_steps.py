"""What is known, told and counted while a step is waited for."""

import pytest

from runtime.executor.interface import StepHandle
from runtime.messages import State, ToScheduler
from runtime.wire.step import KeptResult, Sample, SampleKept, StepPlan, StepResult
from tests.runtime.scheduler.test_overlap import AMPLE, VOCAB, A, overlapping, prompt_of
from tests.testing.fake_grammars import FakeGrammars
from tests.testing.scheduler_rig import SMALL, Rig
from tests.testing.token_runner import TokenRunner


class LateRunner:
    """Notes what is known when a result is waited for, and sent when outputs are read."""

    def __init__(self, runner: TokenRunner) -> None:
        self._runner = runner
        self.rig: Rig
        self.seen: list[State] = []
        self.sent: list[tuple[int, int]] = []

    def launch(self, plan: StepPlan) -> StepHandle:
        """Start a step."""
        return LateStep(self, self._runner.launch(plan))

    def sample_kept(self, command: SampleKept) -> KeptResult:
        """Sample lines whose logits were kept."""
        return self._runner.sample_kept(command)


class LateStep:
    """One of its steps."""

    forwarded = halfway = True

    def __init__(self, runner: LateRunner, step: StepHandle) -> None:
        self._runner = runner
        self._step = step

    def sample(self, command: Sample) -> None:
        rig = self._runner.rig
        if 1 in rig.replica.sets.by_id:
            self._runner.sent.append((len(rig.tokens(1)), rig.request(1).output_tokens))
        self._step.sample(command)

    def result(self) -> StepResult:
        self._runner.seen.append(self._runner.rig.scheduler.state())
        return self._step.result()


def late_rig(grammars: FakeGrammars | None = None) -> tuple[Rig, LateRunner]:
    runner = LateRunner(TokenRunner(SMALL, AMPLE, vocab=VOCAB))
    rig = runner.rig = overlapping(runner=runner, grammars=grammars)
    return rig, runner


def test_the_step_has_an_age_while_it_is_waited_for_and_else_the_loop_has() -> None:
    rig, runner = late_rig()
    rig.send(prompt_of(1, 6), 9)
    while rig.busy:
        rig.scheduler.turn()
        state = rig.scheduler.state()
        assert (state.step_age_s, state.loop_age_s > 0) == (0.0, True)

    assert len(runner.seen) == 9
    assert all(state.step_age_s > 0 and state.loop_age_s == 0.0 for state in runner.seen)


def test_tokens_that_are_known_are_sent_before_a_step_with_grammars_is_sampled() -> None:
    grammars = FakeGrammars(VOCAB)
    rig, runner = late_rig(grammars)
    free = rig.send(prompt_of(1, 6), 30)
    rig.turn_until(lambda: len(rig.tokens(free)) == 5)
    rig.send(prompt_of(2, 6), 4, grammar=A)
    while rig.busy:
        grammars.answer()
        rig.scheduler.turn()

    assert len(runner.sent) >= 4
    assert all(sent == known for sent, known in runner.sent)


def test_only_an_idle_loop_waits_for_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(AMPLE, rows=1)
    waits: list[float] = []
    receive = rig.socket.receive

    def received(timeout_s: float) -> list[ToScheduler]:
        waits.append(timeout_s)
        return receive(timeout_s)

    monkeypatch.setattr(rig.socket, "receive", received)
    rig.send(prompt_of(1, 40), 5)
    rig.send(prompt_of(2, 20), 5)
    rig.run()
    rig.scheduler.turn()
    rig.scheduler.turn()

    idle_s = rig.settings.idle_poll_s
    assert waits[0] == waits[-1] == idle_s
    assert set(waits[1:-2]) == {0.0}
