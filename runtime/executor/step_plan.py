"""What the scheduler asks of a model runner, and what comes back: host data only.

A step is launched without knowing what its rows may say: that is needed only when its logits are
sampled, which `StepHandle.sample` has the device do. A row whose mask is not known even then is
held: `ModelRunner.sample` samples it later, from the logits it left, and nothing of it is computed
twice. Neither call waits for the device, so that the step after it can be launched, fed with tokens
that the host has not heard of, before `StepHandle.result` waits for them. Tests and benchmarks pass
runners of their own.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import numpy as np

from runtime.messages import Logprobs, Sampling, TokenLogprobs


class Phase(Enum):
    """What a step does."""

    PREFILL = "prefill"
    DECODE = "decode"


class Constraint(Protocol):
    """Which tokens the output of a request may go on with."""

    @property
    def allowed(self) -> np.ndarray | None:
        """[ceil(V / 32)] int32, bit k % 32 of word k // 32 for token k; None while unknown."""
        ...


@dataclass(slots=True)
class SampleState:
    """What sampling needs of one request, kept by the scheduler from admission to the end.

    prompt       [P] int32 the prompt, for the repetition penalty
    output       output tokens so far; the scheduler appends at settle
    constraint   of an output that must follow a grammar: sampled only when `allowed` is known,
                 which may be as late as when the step's logits are there
    stop_ids     tokens that `min_new_tokens` forbids until it is reached
    """

    sampling: Sampling
    logprobs: Logprobs | None
    prompt: np.ndarray
    stop_ids: tuple[int, ...]
    output: list[int] = field(default_factory=list)
    constraint: Constraint | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the next token can be sampled: what its grammar allows is known."""
        return self.constraint is None or self.constraint.allowed is not None

    @property
    def reads_output(self) -> bool:
        """Whether the next token can be sampled only when the host knows all that come before it.

        It brings masks, counts what penalties are for, and forbids stop tokens. Once this is False
        it stays so.
        """
        sampling = self.sampling
        return (
            self.constraint is not None
            or len(self.output) < sampling.min_new_tokens
            or sampling.repetition_penalty != 1.0
            or bool(sampling.presence_penalty or sampling.frequency_penalty)
        )


@dataclass(frozen=True, slots=True)
class PromptLogprobSpan:
    """Log-probabilities of prompt tokens wanted from one row of a prefill step.

    row        index of the row in this step
    positions  the logits of positions [start, stop) are read; the value reported for p + 1
    targets    [stop - start] int32, the tokens at positions start + 1 .. stop
    """

    row: int
    start: int
    stop: int
    targets: np.ndarray
    top: int
    token_ids: tuple[int, ...]


@dataclass(slots=True)
class StepPlan:
    """One step. n rows, T tokens, m saves; layers.forward_batch says what each array means.

    page_copies   (source, destination) full pages, copied in order before the forward pass
    swa_copies    (source, destination) SWA pages, likewise
    ring_copies   (source, destination) rings, likewise
    sampled       [s] indices of the rows whose last token's logits are sampled; one that other
                  requests with the same prompt wait for comes again for each of them
    samples       s sampling states, one per entry of `sampled`
    positions     [s] int64 position the sampled token will have
    feed          [n] int64 or None. The input id of row i is the token that entry feed[i] of
                  `sampled` got in the step launched just before; any token if that row failed.
                  -1: it is input_ids of that row. A row that is fed is one token, whose input id
                  is 0. None: no row is
    """

    phase: Phase
    input_ids: np.ndarray
    chunk_start: np.ndarray
    chunk_len: np.ndarray
    page_table: np.ndarray
    window: np.ndarray
    ring: np.ndarray
    window_from: np.ndarray
    write_from: np.ndarray
    save_row: np.ndarray
    save_position: np.ndarray
    save_ring: np.ndarray
    save_window: np.ndarray
    page_copies: list[tuple[int, int]]
    swa_copies: list[tuple[int, int]]
    ring_copies: list[tuple[int, int]]
    sampled: np.ndarray
    samples: list[SampleState]
    positions: np.ndarray
    prompt_logprobs: list[PromptLogprobSpan]
    feed: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class HeldRow:
    """A row whose forward pass is over and whose token waits for its mask.

    logits    of its last token, the runner's own
    position  that the sampled token will have
    """

    logits: Any
    sample: SampleState
    position: int


@dataclass(slots=True)
class StepResult:
    """What a step produced.

    token_ids        one per sampled row; 0 for one that failed
    failed           per sampled row, why it has no usable token ("logits are not finite"), or None
    logprobs         per sampled row that asked, its token's log-probabilities; else None
    prompt_logprobs  one per span of the plan, in its order: values at positions start+1 .. stop

    What is said of a row that is held means nothing.
    """

    token_ids: list[int]
    failed: list[str | None]
    logprobs: list[TokenLogprobs | None]
    prompt_logprobs: list[TokenLogprobs]


class StepHandle(Protocol):
    """A step in flight."""

    @property
    def forwarded(self) -> bool:
        """Whether the forward pass is over: from then on, waiting for masks leaves it idle."""
        ...

    @property
    def halfway(self) -> bool:
        """Whether it is time to plan the next step, which begins when this one is over."""
        ...

    def sample(self) -> dict[int, HeldRow]:
        """Have the device sample the rows; return those held, by their index in `sampled`.

        Waits for nothing. To be called once, before the next launch, and when the host knows all
        tokens that come before (`SampleState.reads_output`).
        """
        ...

    def result(self) -> StepResult:
        """Wait for the tokens of a step that was sampled, and return them."""
        ...


class ModelRunner(Protocol):
    """Runs steps in the order given, against the pools it owns."""

    def launch(self, plan: StepPlan) -> StepHandle:
        """Start a step; the copies of the plan come first."""
        ...

    def sample(self, rows: list[HeldRow]) -> StepResult:
        """Sample rows that steps have held, and whose masks are known now."""
        ...
