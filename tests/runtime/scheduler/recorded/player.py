"""Runs a workload on the real scheduler, and writes down every step and answer in lines.

Requests come, leave and get their masks by the number of steps launched, not of turns or of looks
at a clock: a loop that turns more often but launches the same steps has the same record.
"""

from collections import Counter
from dataclasses import dataclass, field, replace

from runtime.messages import Abort, Output, Outputs, Stop
from runtime.packed_logprobs import PromptLogprobs, TokenLogprobs
from runtime.wire.arrays import INT32, unpacked
from runtime.wire.step import SampleKept, StepPlan
from tests.runtime.scheduler.recorded.stand_ins import SamplingRunner, StepGrammars, WatchedRunner
from tests.runtime.scheduler.recorded.step_view import (
    LETTERS,
    StepView,
    lines,
    numbers,
    read_plan,
)
from tests.runtime.scheduler.recorded.workloads import END, VOCAB, Ask, Workload
from tests.testing.plan_arrays import PlanReader
from tests.testing.scheduler_rig import Rig

STEP_S = 0.1  # Requests are overdue after 20 steps.
MOST_TURNS = 5000


class PlayedRig(Rig):
    """A rig whose clock stands still between two steps."""

    def _tick(self) -> float:
        return self.now_s


@dataclass
class Played:
    """What came of a workload.

    lines   steps and answers
    counts  how often what the record is there for has happened
    """

    lines: list[str] = field(default_factory=list[str])
    counts: Counter[str] = field(default_factory=Counter[str])


class Player:
    """One workload on its way through a scheduler."""

    def __init__(self, workload: Workload) -> None:
        self.played = Played()
        self._reader = PlanReader(workload.spec)
        runner = SamplingRunner(
            workload.spec, workload.sizes, vocab=VOCAB, replay_tokens=workload.replay
        )
        if workload.fail_token is not None:
            runner.fail_tokens.add(workload.fail_token)
        self._runner = WatchedRunner(
            runner, slow=workload.slow, on_launch=self._launch, on_late=self._late
        )
        self._grammars = StepGrammars(VOCAB, frozenset({END}))
        self._rig = _rig(workload, self._runner, self._grammars)
        self._asks = list(workload.asks)
        self._leaving: list[tuple[int, Ask]] = []
        self._failing: list[tuple[int, Ask]] = []

    def play(self) -> Played:
        """Turn until every request has ended; what goes wrong is a line as well."""
        try:
            self._run()
        except AssertionError as error:
            self.played.lines.append(f"fails: {error}")
        self._add_answers()
        return self.played

    def _run(self) -> None:
        rig, runner = self._rig, self._runner
        for _ in range(MOST_TURNS):
            runner.turn()
            self._send_due()
            before = runner.steps
            self._grammars.steps = before
            rig.now_s = before * STEP_S
            rig.scheduler.turn()
            # Nothing but masks can be awaited.
            self._grammars.all_due = runner.steps == before and runner.is_idle
            if not self._asks and not rig.busy:
                assert not self._grammars.outputs, "grammars are left open"
                return rig.assert_conserved()
        raise AssertionError("requests do not come to an end")

    def _send_due(self) -> None:
        """Put the messages that are due into the inbox."""
        rig, steps = self._rig, self._runner.steps + self._runner.is_early
        while self._asks and (self._asks[0].step <= steps or not rig.busy):
            ask = self._asks.pop(0)
            rig.socket.inbox.append(ask.message)
            if ask.leaves is not None:
                self._leaving.append((steps + ask.leaves, ask))
            if ask.fails is not None:
                self._failing.append((steps + ask.fails, ask))
        for at, ask in list(self._leaving):
            if at <= steps:
                self._leaving.remove((at, ask))
                message = Stop if ask.stops else Abort
                rig.socket.inbox.append(message([ask.message.request_id]))
        for at, ask in list(self._failing):
            if at <= steps:
                self._failing.remove((at, ask))
                if ask.message.request_id in self._grammars.outputs:
                    self._grammars.fail(ask.message.request_id, "no more")

    def _launch(self, plan: StepPlan) -> None:
        view = read_plan(self._reader.read(plan), self._rig.replica, spec=self._rig.spec)
        self.played.lines += lines(self._runner.steps, view)
        self._count(view)

    def _count(self, view: StepView) -> None:
        counts = self.played.counts
        several = [row for row in view.rows if row.count > 1]
        counts["steps"] += 1
        counts["mixed steps"] += 0 < len(several) < len(view.rows)
        counts["tokens fed from the step before"] += sum(
            row.sampled_by is not None for row in view.rows
        )
        counts["rows that feed a last token"] += sum(
            row.count == 1 and not row.sampled and row.sampled_by is not None for row in view.rows
        )
        counts["replays"] += sum(row.replay > 0 for row in view.rows)
        counts["sampled for a waiting request"] += sum(len(row.sampled) > 1 for row in view.rows)
        counts["log-probabilities of prompts"] += sum(bool(row.prompt) for row in view.rows)
        counts["saves inside a chunk"] += sum(len(row.saves) > 1 for row in view.rows)
        counts["copies"] += bool(view.page_copies or view.swa_copies or view.ring_copies)

    def _late(self, command: SampleKept) -> None:
        requests = {r.row: r for r in self._rig.replica.sets.by_id.values()}
        late = [requests[line] for line in unpacked(command.lines, INT32).tolist()]
        named = " ".join(f"r{request.id} at {request.total}" for request in late)
        self.played.lines.append(f"late sample {named}")
        self.played.counts["held rows"] += len(late)

    def _add_answers(self) -> None:
        rig = self._rig
        outputs: dict[int, list[Output]] = {}
        for message in rig.socket.outbox:
            if isinstance(message, Outputs):
                for item in message.items:
                    outputs.setdefault(item.request_id, []).append(item)
        self.played.lines += [_answer(k, items) for k, items in sorted(outputs.items())]
        for refused in rig.refusals():
            self.played.lines.append(f"answer r{refused.request_id}: refused, {refused.reason}")
        counters = rig.replica.stats.counters
        for name in ("retracted", "aborted", "failed", "refused", "finished"):
            self.played.counts[f"{name} requests"] += int(counters[f"{name}_requests"])


def _rig(workload: Workload, runner: WatchedRunner, grammars: StepGrammars) -> Rig:
    return PlayedRig(
        workload.sizes,
        spec=workload.spec,
        rows=workload.rows,
        reuse=workload.reuse,
        chunk=workload.chunk,
        policy=workload.policy,
        vocab=VOCAB,
        logit_rows=workload.logit_rows,
        eos=(END,),
        resume=workload.resume,
        replay=workload.replay,
        quota=workload.quota,
        runner=runner,
        grammars=grammars,
        overlap=workload.overlap,
        adjust=lambda settings: replace(
            settings,
            step_context=workload.context,
            step_samples=workload.samples,
            check_every_step=False,
        ),
    )


def _answer(request: int, items: list[Output]) -> str:
    """Return all that a request was sent, as one line."""
    last = items[-1]
    tokens = "".join(LETTERS[t] for item in items for t in item.token_ids)
    parts = [f"answer r{request}: {tokens}", f"cached {items[0].cached_tokens}"]
    if last.finish is not None:
        parts.append(f"{last.finish} {last.matched_stop} {last.error}")
    for name, prompt in (("prompt", True), ("own", False)):
        given = [item.prompt_logprobs if prompt else item.logprobs for item in items]
        values = [v for g in given if g is not None for v in _whole(g)]
        if values:
            parts.append(f"{name} {numbers(values)}")
    return ", ".join(parts)


def _whole(given: PromptLogprobs | TokenLogprobs) -> list[int]:
    """Return log-probabilities as the integers that they are here; -1 for none."""
    return [-1 if value is None else abs(int(value)) for value in given.values]


def play(workload: Workload) -> Played:
    """Run a workload to its end."""
    return Player(workload).play()
