"""What stands in for the device and for the grammars: integers, and no clock."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from runtime.executor.interface import StepHandle
from runtime.grammar.output import GrammarOutput
from runtime.messages import Grammar
from runtime.wire.arrays import FLOAT32, INT32, packed, unpacked
from runtime.wire.step import (
    KeptResult,
    PackedLogprobs,
    Sample,
    SampleKept,
    StepPlan,
    StepResult,
)
from tests.testing.fake_grammars import FakeGrammars
from tests.testing.token_draws import SampledRow
from tests.testing.token_runner import TokenRunner, next_token


class SamplingRunner(TokenRunner):
    """A token runner whose tokens depend on all that sampling parameters say.

    Of the tokens that mask and minimum length allow, it takes the one with the least sum of its
    distance from the one that follows the hash, and of its penalties.
    """

    def _logprobs(self, row: SampledRow, token: int) -> PackedLogprobs | None:
        if row.state.top_logprobs < 0:
            return None
        value = -float((row.logits + np.uint64(token)) % np.uint64(97))
        asked = [0.0] * len(unpacked(row.state.logprob_ids, INT32))
        return PackedLogprobs(0, packed([token], INT32), packed([value, *asked], FLOAT32))

    def _pick(self, row: SampledRow) -> int:
        state, vocab = row.state, self.vocab
        first = next_token(row.logits, vocab)
        if state.temperature:
            first = (first + state.seed + 7 * row.position) % vocab
        tokens = (first + np.arange(vocab)) % vocab
        score = np.arange(vocab) + self._penalties(row)[tokens]
        allowed = self._allowed(row)[tokens]
        return int(tokens[allowed][np.argmin(score[allowed])])

    def _penalties(self, row: SampledRow) -> np.ndarray:
        state, vocab = row.state, self.vocab
        said = np.bincount(np.array(row.output, dtype=np.int64), minlength=vocab)
        read = np.bincount(unpacked(state.prompt, INT32), minlength=vocab)
        penalty = state.presence_penalty * (said > 0) + state.frequency_penalty * said
        penalty += (state.repetition_penalty - 1.0) * ((said + read) > 0)
        return penalty.astype(np.int64)

    def _allowed(self, row: SampledRow) -> np.ndarray:
        state, allowed = row.state, np.ones(self.vocab, dtype=bool)
        if row.mask is not None:
            bits = np.unpackbits(row.mask.view(np.uint8), bitorder="little")
            allowed &= bits[: self.vocab] == 1
        if row.position - state.prompt_tokens < state.min_new_tokens:
            allowed[unpacked(state.stop_ids, INT32)] = False
        return allowed if allowed.any() else np.ones(self.vocab, dtype=bool)


@dataclass(slots=True, eq=False)
class SlowStep:
    """A step that is halfway once `halfway` is set."""

    step: StepHandle
    forwarded: bool = True
    halfway: bool = False

    def sample(self, command: Sample) -> None:
        """Have the rows sampled."""
        self.step.sample(command)

    def result(self) -> StepResult:
        """Return what was sampled."""
        return self.step.result()


class StepGrammars(FakeGrammars):
    """Grammars whose masks differ by request and token, and are a number of steps late.

    steps    launched so far
    all_due  no mask is late
    """

    def __init__(self, vocab: int, end_ids: frozenset[int]) -> None:
        super().__init__(vocab, end_ids)
        self.steps = 0
        self.all_due = False
        self._asked: dict[int, int] = {}
        self._unsent: set[int] = set()

    def open(self, request_id: int, grammar: Grammar) -> GrammarOutput:
        """Return a new output, whose first mask is under way."""
        output = super().open(request_id, grammar)
        accept, self._asked[request_id] = output.accept, self.steps

        def take(token: int) -> None:
            accept(token)
            self._unsent.add(request_id)

        output.accept = take
        return output

    def flush(self) -> None:
        """Send the tokens that outputs have taken: only then their next masks are under way."""
        super().flush()
        self._asked.update(dict.fromkeys(self._unsent, self.steps))
        self._unsent.clear()

    def poll(self, timeout_s: float = 0.0) -> list[GrammarOutput]:
        """Bring the masks that are due; return the outputs that failed."""
        for request_id, output in self.outputs.items():
            known = output.allowed is not None or output.failure is not None
            if known or request_id in self._unsent:
                continue
            taken = len(self.accepted[request_id])
            late = (0, 0, 1, 3)[(5 * request_id + 3 * taken) % 4]
            if self.all_due or self.steps >= self._asked[request_id] + late:
                output.mask(_mask(request_id, taken, len(self.all)))
        return super().poll(timeout_s)


def _mask(request_id: int, taken: int, words: int) -> np.ndarray:
    """Return about half of all tokens."""
    seeds = np.arange(words, dtype=np.uint64) + np.uint64(1 + 31 * request_id + 1009 * taken)
    with np.errstate(over="ignore"):
        mixed = seeds * np.uint64(0x9E37_79B9_7F4A_7C15)
    return (mixed >> np.uint64(32)).astype(np.uint32).view(np.int32)


class WatchedRunner:
    """Calls back with each plan and with late lines before a runner gets them.

    slow   steps of many tokens are halfway in the third turn after their launch
    steps  launched so far
    """

    def __init__(
        self,
        runner: SamplingRunner,
        *,
        slow: bool,
        on_launch: Callable[[StepPlan], None],
        on_late: Callable[[SampleKept], None],
    ) -> None:
        self.steps = 0
        self._runner = runner
        self._slow = slow
        self._on_launch, self._on_late = on_launch, on_late
        self._last: SlowStep | None = None
        self._turns = 0

    @property
    def is_idle(self) -> bool:
        """Whether no step is in flight."""
        return not self._runner.open_steps

    @property
    def is_early(self) -> bool:
        """Whether the step launched last is not halfway, and has run for a turn."""
        return self._last is not None and not self._last.halfway and self._turns > 1

    def turn(self) -> None:
        """Note that a turn begins."""
        self._turns += 1
        if self._last is not None and self._turns > 2:
            self._last.halfway = True

    def launch(self, plan: StepPlan) -> StepHandle:
        """Run a step."""
        self._on_launch(plan)
        self.steps += 1
        step = self._runner.launch(plan)
        if not self._slow or len(unpacked(plan.rows.ids, INT32)) < 6:
            return step
        self._last, self._turns = SlowStep(step), 0
        return self._last

    def sample_kept(self, command: SampleKept) -> KeptResult:
        """Sample lines whose logits were kept."""
        self._on_late(command)
        return self._runner.sample_kept(command)
