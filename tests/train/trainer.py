"""The run: phases, steps, the log, and what is kept between slices."""

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from layers.models.deepseek_v4.config import ModelConfig
from tests.train.exam import HIDDEN, Exams, Paper, right_answers
from tests.train.exported import is_exported, load_exported
from tests.train.losses import Tally, targets_of
from tests.train.mode import Mode
from tests.train.network import V4Trainee
from tests.train.optimiser import Optimiser
from tests.train.parameters import first_parameters, split_parameters
from tests.train.phases import Phase, phase_at, rate_at
from tests.train.ranks import Ranks, SharedSource
from tests.train.regions import Regions
from tests.train.run_log import ExamRow, LogRow, RunLog
from tests.train.run_state import (
    Progress,
    StateError,
    load_portable,
    load_state,
    save_portable,
    save_state,
)
from tests.train.source import Rows, Source
from tests.train.step_gradient import LossWeights, StepSums, step_gradient

STATE = "state"
LOG = "log.csv"
EXAM_LOG = "exams.csv"
_INDEXER = ".indexer."


class Diverged(Exception):
    """The loss is no number any more."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Constants of a run.

    rate            learning rate at its peak
    clip            greatest gradient norm, of the indexers and of all else apart
    index_weight    of the indexer's divergence in the loss
    balance_weight  of the loss for uneven routing
    balance_rate    step of the routers' biases towards even loads
    log_every       steps a row of the log
    probe_every     steps between measurements of the indexer's recall; none on votes alone
    exam_every      steps between exams; there is one at each phase's end, too
    """

    rate: float = 5e-3
    clip: float = 1.0
    index_weight: float = 1.0
    balance_weight: float = 1e-3
    balance_rate: float = 1e-3
    log_every: int = 10
    probe_every: int = 50
    exam_every: int = 200
    seed: int = 0


@dataclass(slots=True)
class _Interval:
    """Sums since the last row of the log; tensors stay on the device until it is written."""

    began: float
    steps: int = 0
    tokens: int = 0
    loss: Tensor | float = 0.0
    indexed: int = 0
    index_kl: Tensor | float = 0.0
    tally: Tally | None = None


class Trainer:
    """Trains one network in a folder, slice by slice."""

    def __init__(
        self,
        config: ModelConfig,
        phases: Sequence[Phase],
        folder: Path,
        *,
        source: Source,
        settings: RunSettings | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        regions: Regions | None = None,
        exams: Exams | None = None,
        ranks: Ranks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin anew; `resume` or `take_up` go on with what there is.

        folder  the state and the log are kept there
        dtype   of matrices and activations; parameters and moments are float32
        exams   what is asked while the run goes on, None: nothing
        ranks   the processes that share the run, None: this one alone
        """
        self.settings = settings or RunSettings()
        self.progress = Progress()
        self._ranks = ranks or Ranks()
        self._weights = LossWeights(self.settings.index_weight, self.settings.balance_weight)
        self._phases, self._folder = list(phases), folder
        self._source, self._exams = SharedSource(source, self._ranks), exams
        self._clock, self._device = clock, device or torch.device("cpu")
        self._network = V4Trainee(config, dtype=dtype, regions=regions)
        # One row has a shape of its own, not worth compiling for.
        self._probed = V4Trainee(config, dtype=dtype)
        first = first_parameters(config, self.settings.seed)
        self._names = list(first)
        self._take(first)
        self._recall = math.nan

    @property
    def parameters(self) -> dict[str, Tensor]:
        """All tensors by published name, those that gradients do not move included."""
        return {**self._trained, **self._fixed}

    @property
    def finished(self) -> bool:
        """Whether all phases are done."""
        return self.progress.step >= sum(phase.steps for phase in self._phases)

    def resume(self) -> None:
        """Go on exactly where the folder's state ends.

        Raises StateError when there is none.
        """
        self.progress, parameters, moments = load_state(self._folder / STATE)
        self._take(parameters)
        self._optimiser.load(moments, self.progress.moment_steps)

    def take_up(self, folder: Path, *, step: int | None = None) -> None:
        """Go on with parameters alone; the rate rises slowly until there are moments again.

        folder  portable files, or a checkpoint, which does not tell how it was trained
        step    steps that count as done, None: those that `folder` tells of
        Raises StateError.
        """
        if is_exported(folder):
            progress, parameters = Progress(), load_exported(folder)
        else:
            progress, parameters = load_portable(folder)
        if step is not None:
            progress = replace(progress, step=step)
        self.progress = replace(progress, moment_steps=0, lost_at=progress.step)
        self._take(parameters)

    def save(self, portable: Path | None = None) -> None:
        """Write the state to the folder, and the parameters to `portable` if it is named.

        Of several processes the first one does.
        """
        if not self._ranks.leads:
            return
        progress = self.progress
        save_state(self._folder / STATE, progress, self.parameters, self._optimiser.tensors())
        if portable is not None:
            save_portable(portable, progress, self.parameters)

    def train(self, until: float = math.inf) -> bool:
        """Run until all phases are done or the clock says `until`; return `finished`.

        The state is saved at the end of each phase. Raises Diverged.
        """
        while not self.finished and self._goes_on(until):
            number, _ = phase_at(self._phases, self.progress.step)
            self._run_phase(number, until)
            if self.finished or phase_at(self._phases, self.progress.step)[0] != number:
                self.save()
        return self.finished

    def _goes_on(self, until: float) -> bool:
        return self._ranks.agreed(self._clock() < until)

    def _take(self, parameters: dict[str, Tensor]) -> None:
        missing = [name for name in self._names if name not in parameters]
        if missing:
            raise StateError(f"the state has no {missing[0]}")
        # Norms are added up in the order of names, whatever the order in a file.
        held = {name: parameters[name].to(self._device) for name in self._names}
        self._trained, self._fixed = split_parameters(held)
        for tensor in self._trained.values():
            tensor.requires_grad_()
        self._optimiser = Optimiser(self._trained)

    def _run_phase(self, number: int, until: float) -> None:
        phase = self._phases[number]
        ends = sum(earlier.steps for earlier in self._phases[: number + 1])
        if self._exams is not None and self._ranks.leads:
            self._exams.prepare(phase.length)
        self._ranks.follow([tensor.detach() for tensor in self.parameters.values()])
        interval = _Interval(self._clock())
        with self._source.open(phase, self.progress.step) as rows:
            while self.progress.step < ends and self._goes_on(until):
                interval = self._step(phase, rows, interval, ends)
        self.progress = replace(
            self.progress, seconds=self.progress.seconds + self._clock() - interval.began
        )

    def _step(self, phase: Phase, rows: Rows, interval: _Interval, ends: int) -> _Interval:
        """Go a step; return the interval that the next one belongs to."""
        ids, weights = rows.next()
        tokens = torch.from_numpy(ids).to(self._device, non_blocking=True)
        shares = torch.from_numpy(weights).to(self._device, non_blocking=True)
        rate, mode = self._rate(), phase.mode_at(self.progress.step)
        done = step_gradient(
            self._network,
            self.parameters,
            tokens,
            targets_of(tokens, shares, text_weight=phase.text_weight),
            mode=mode,
            micro_rows=_micro_rows(phase),
            weights=self._weights,
            ranks=self._ranks,
        )
        norm = self._descend(rate, done)
        self._advance(interval, done, tokens.numel())
        if not self._ranks.leads:
            return interval
        step, settings = self.progress.step, self.settings
        if step % settings.probe_every == 1 and mode == phase.mode:
            self._probe(phase, tokens)
        if step % settings.log_every and step != ends:
            return interval
        row = self._row(phase, interval, done, float(norm), rate)
        RunLog(self._folder / LOG, until=step - 1).add(row)
        self._examine(phase, last=step == ends)
        return _Interval(self._clock())

    def _rate(self) -> float:
        step, lost = self.progress.step, self.progress.lost_at
        since = None if lost is None else step - lost
        return self.settings.rate * rate_at(self._phases, step, since_lost=since)

    def _descend(self, rate: float, done: StepSums) -> Tensor:
        """Clip, step, and nudge the routers; return the gradient norm of all but the indexers."""
        settings = self.settings
        indexers = [tensor for name, tensor in self._trained.items() if _INDEXER in name]
        rest = [tensor for name, tensor in self._trained.items() if _INDEXER not in name]
        torch.nn.utils.clip_grad_norm_(indexers, settings.clip)
        norm = torch.nn.utils.clip_grad_norm_(rest, settings.clip)
        self._optimiser.step(rate)
        for tensor in self._trained.values():
            tensor.grad = None
        speed = settings.balance_rate * rate / settings.rate
        for layer, load in (done.loads or {}).items():
            bias = self._fixed.get(f"layers.{layer}.ffn.gate.bias")
            if bias is not None:
                bias.add_(torch.sign(load.mean() - load), alpha=speed)
        return norm

    def _advance(self, interval: _Interval, done: StepSums, tokens: int) -> None:
        progress = self.progress
        self.progress = replace(
            progress,
            step=progress.step + 1,
            tokens=progress.tokens + tokens,
            moment_steps=self._optimiser.steps,
        )
        interval.steps += 1
        interval.tokens += tokens
        interval.loss = interval.loss + done.loss
        if isinstance(done.index_kl, Tensor):
            interval.index_kl = interval.index_kl + done.index_kl
            interval.indexed += 1
        tally = done.tally
        if tally is not None:
            interval.tally = tally if interval.tally is None else interval.tally + tally

    @torch.no_grad()
    def _probe(self, phase: Phase, tokens: Tensor) -> None:
        """Measure the indexer's recall on the first row."""
        mode = replace(phase.mode, select=False, train_indexer=False, measure=True)
        outcome = self._probed(self.parameters, tokens[:1], mode)
        recalls = [
            float(report.recall) for report in outcome.index.values() if report.recall is not None
        ]
        self._recall = sum(recalls) / len(recalls) if recalls else math.nan

    def _examine(self, phase: Phase, *, last: bool) -> None:
        """Ask all papers, if it is time to, and log how they went."""
        step = self.progress.step
        if self._exams is None or not (last or step % self.settings.exam_every == 0):
            return
        log = RunLog(self._folder / EXAM_LOG, until=step, kind=ExamRow)
        for paper in self._exams.papers(phase.length):
            for hidden in ((), *HIDDEN.get(paper.task, ())):
                mode = replace(phase.mode, train_indexer=False, hidden=hidden)
                right, asked = self._answered(paper, mode, rows=_micro_rows(phase))
                shown = " ".join(map(str, hidden))
                share = right / asked if asked else math.nan
                log.add(ExamRow(step, phase.name, phase.length, paper.task, shown, asked, share))
                without = f" without {shown}" if shown else ""
                sys.stderr.write(f"{step:6d} {paper.task}{without}: {right} of {asked}\n")

    @torch.no_grad()
    def _answered(self, paper: Paper, mode: Mode, *, rows: int) -> tuple[int, int]:
        """Return (how many questions of a paper are answered right, how many there are)."""
        right = asked = 0
        for first in range(0, len(paper.ids), rows):
            part = slice(first, first + rows)
            tokens = torch.from_numpy(paper.ids[part]).to(self._device)
            logits = self._probed(self.parameters, tokens, mode).logits
            hits, count = right_answers(logits, paper, part)
            right, asked = right + hits, asked + count
        return right, asked

    def _row(
        self, phase: Phase, interval: _Interval, done: StepSums, norm: float, rate: float
    ) -> LogRow:
        steps, tally = interval.steps, interval.tally
        assert tally is not None
        loss = float(interval.loss) / steps
        # Reading a number has waited for the device.
        now = self._clock()
        spent = max(now - interval.began, 1e-9)
        self.progress = replace(self.progress, seconds=self.progress.seconds + spent)
        if not math.isfinite(loss):
            raise Diverged(f"the loss is {loss} at step {self.progress.step}")
        answers, texts = float(tally.answers), float(tally.texts)
        loads = torch.stack(list((done.loads or {}).values())).float()
        row = LogRow(
            step=self.progress.step,
            phase=phase.name,
            length=phase.length,
            tokens=self.progress.tokens,
            seconds=self.progress.seconds,
            loss=loss,
            answer_loss=float(tally.answer_loss) / answers if answers else math.nan,
            text_loss=float(tally.text_loss) / texts if texts else math.nan,
            accuracy=float(tally.right) / answers if answers else math.nan,
            index_kl=float(interval.index_kl) / interval.indexed if interval.indexed else math.nan,
            recall=self._recall,
            grad_norm=norm,
            rate=rate,
            tokens_per_s=interval.tokens / spent,
            load_least=float(loads.min()),
            load_most=float(loads.max()),
        )
        _say(row)
        return row


def _micro_rows(phase: Phase) -> int:
    """Return the rows that a device computes at once."""
    return max(1, phase.micro // phase.length)


def _say(row: LogRow) -> None:
    sys.stderr.write(
        f"{row.step:6d} {row.phase:8s} loss {row.loss:.4f} answers {row.answer_loss:.4f} "
        f"right {row.accuracy:.4f} text {row.text_loss:.4f} kl {row.index_kl:.4f} "
        f"recall {row.recall:.3f} norm {row.grad_norm:.2f} {row.tokens_per_s / 1e3:.0f} k/s\n"
    )
    sys.stderr.flush()
