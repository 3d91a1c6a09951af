"""The step after a long one is planned when that is halfway: who has come until then takes part."""

from mem_cache.spec import PoolSizes
from runtime.executor.interface import StepHandle
from runtime.scheduler.loop import EARLY_POLL_S
from runtime.wire.step import KeptResult, Sample, SampleKept, StepPlan, StepResult
from tests.testing.scheduler_rig import SMALL, MemorySocket, Rig
from tests.testing.token_runner import TokenRunner, expected_output

AMPLE = PoolSizes(full_pages=200, swa_pages=200, states=60)
VOCAB = 50
LONG = [i * 7 % 41 for i in range(90)]
SHORT = [5, 4, 3]


class SlowRunner:
    """A token runner whose prefill steps are halfway when told so."""

    def __init__(self) -> None:
        self._runner = TokenRunner(SMALL, AMPLE, vocab=VOCAB)
        self.halfway = True
        self.results = 0

    def launch(self, plan: StepPlan) -> StepHandle:
        """Launch a step."""
        long = bool(plan.joins) or len(plan.rows.ids) > len(plan.rows.line)
        return _SlowStep(self, self._runner.launch(plan), long)

    def sample_kept(self, command: SampleKept) -> KeptResult:
        """Sample lines whose logits were kept."""
        return self._runner.sample_kept(command)


class _SlowStep:
    """One of its steps."""

    forwarded = True

    def __init__(self, runner: SlowRunner, step: StepHandle, long: bool) -> None:
        self._runner = runner
        self._step = step
        self._long = long

    @property
    def halfway(self) -> bool:
        return not self._long or self._runner.halfway

    def sample(self, command: Sample) -> None:
        self._step.sample(command)

    def result(self) -> StepResult:
        self._runner.results += 1
        return self._step.result()


class PatientSocket(MemorySocket):
    """Notes how long each call would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.patience_s: list[float] = []

    def receive(self, timeout_s: float):  # type: ignore[no-untyped-def]
        self.patience_s.append(timeout_s)
        return super().receive(timeout_s)


def rig_of(runner: SlowRunner, *, chunk: int = 32) -> tuple[Rig, PatientSocket]:
    rig = Rig(AMPLE, chunk=chunk, runner=runner, overlap=True)
    socket = PatientSocket()
    rig.socket = rig.scheduler._socket = socket
    return rig, socket


def in_a_long_step() -> tuple[SlowRunner, Rig, PatientSocket, int]:
    """Return a scheduler whose step, a chunk of LONG, is not halfway, and the request."""
    runner = SlowRunner()
    rig, socket = rig_of(runner)
    request = rig.send(LONG, 4)
    runner.halfway = False
    rig.scheduler.turn()
    return runner, rig, socket, request


def test_who_comes_before_a_step_is_halfway_takes_part_in_the_next() -> None:
    runner, rig, socket, long = in_a_long_step()
    for _ in range(5):
        rig.scheduler.turn()
    short = rig.send(SHORT, 4)
    rig.scheduler.turn()

    assert len(rig.plans) == 1
    assert runner.results == 0
    assert socket.patience_s[1:] == [EARLY_POLL_S] * 6
    runner.halfway = True
    rig.scheduler.turn()
    assert [len(plan.chunk_len) for plan in rig.plans] == [1, 2]
    rig.run()
    assert rig.tokens(long) == expected_output(LONG, 4, VOCAB)
    assert rig.tokens(short) == expected_output(SHORT, 4, VOCAB)
    rig.assert_conserved()


def test_a_loop_that_waits_for_the_middle_of_a_step_is_alive_and_tells_how_long() -> None:
    runner, rig, _, _ = in_a_long_step()
    before_s = rig.scheduler.times.turned_s
    rig.scheduler.turn()

    assert rig.scheduler.times.turned_s > before_s
    state = rig.scheduler.state()
    assert 0.0 < state.step_age_s < rig.now_s
    assert state.loop_age_s == 0.0
    assert state.gauges["running"] == 1
    runner.halfway = True
    rig.run()
    rig.scheduler.turn()
    assert rig.scheduler.state().step_age_s == 0.0


def test_who_leaves_a_step_that_is_not_halfway_is_let_go_when_it_is_settled() -> None:
    runner, rig, _, gone = in_a_long_step()
    rig.abort(gone)
    rig.scheduler.turn()

    assert runner.results == 1
    assert not rig.busy
    runner.halfway = True
    other = rig.send(SHORT, 4)
    rig.run()
    assert rig.tokens(other) == expected_output(SHORT, 4, VOCAB)
    rig.assert_conserved()


def test_decode_steps_are_planned_at_once() -> None:
    runner = SlowRunner()
    rig, socket = rig_of(runner)
    rig.send(SHORT, 20)
    rig.turn_until(lambda: rig.plans[-1].decodes)
    runner.halfway = False
    socket.patience_s.clear()
    rig.run()

    assert set(socket.patience_s) == {0.0}
