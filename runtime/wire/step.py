"""A step as plain data: what the scheduler asks of an executor, and what comes back.

Words: a *row* is a request's tokens in one step; a *line* is its fixed index for as long as it
runs. An executor keeps, by line, the page table, the window and the state, what sampling needs, the
token sampled last, and the length after the last launched step. A plan tells what has changed of
these since the plan before, then the rows of the step.

    scheduler  -- StepPlan s, Sample s, StepPlan s + 1, SampleKept, ... -->  executor
    scheduler  <-- StepResult s, KeptResult, ...                        --  executor

Where each rank has rows of its own, one message has a plan for each: `Joint`. Lines, states and
pages are a rank's own, then.

Every field is a number, a string, bytes or a struct of these. Arrays are little-endian bytes;
`runtime.wire.arrays` converts them. An array named [k, 3] is k triples, one after the other.
"""

import msgspec

from runtime.packed_logprobs import PackedLogprobs
from runtime.profile_messages import StartProfile, StopProfile

__all__ = [
    "ALL_RANKS",
    "JOINT_VERSION",
    "NOT_FINITE_REASON",
    "VERSION",
    "Copies",
    "EntryLogprobs",
    "Exchange",
    "Failure",
    "Join",
    "Joint",
    "KeptResult",
    "LineSampling",
    "Mask",
    "PackedLogprobs",
    "Profile",
    "PromptSpan",
    "Rows",
    "Sample",
    "SampleKept",
    "Saves",
    "StepPlan",
    "StepResult",
    "TableChanges",
    "UnitTransfer",
]

# To be raised with every change of a field: an executor refuses plans of another version.
VERSION = 3
# The same for `Joint`, whose sections have versions of their own.
JOINT_VERSION = 4
# `Sample.rank` and `SampleKept.rank` of commands to all ranks.
ALL_RANKS = -1
# The `Failure.reason` of an entry whose logits, or row, hold a NaN or an infinity.
NOT_FINITE_REASON = "logits are not finite"


class LineSampling(msgspec.Struct, frozen=True, array_like=True):
    """How the tokens of a line are sampled, from its join to its leave.

    seed             [0, 2^64): random numbers depend on seed, position and token
    top_k            -1 keeps all
    prompt_tokens    length of the prompt: the token at position p is output p - prompt_tokens
    prompt           int32 its tokens, for the repetition penalty; empty without one
    output           int32 tokens sampled before the join, for penalties; empty without one
    bias_ids         [b] int32, and
    bias_values      [b] float32 what is added to their logits
    stop_ids         int32 tokens that are forbidden for `min_new_tokens` outputs
    constrained      the tokens follow a grammar: none is sampled without a mask
    top_logprobs     likeliest tokens told of each token; -1: no log-probabilities are wanted
    logprob_ids      int32 tokens whose log-probabilities are told besides
    """

    seed: int
    prompt_tokens: int
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    prompt: bytes = b""
    output: bytes = b""
    bias_ids: bytes = b""
    bias_values: bytes = b""
    stop_ids: bytes = b""
    constrained: bool = False
    top_logprobs: int = -1
    logprob_ids: bytes = b""


class Join(msgspec.Struct, frozen=True, array_like=True):
    """From this plan on a line is sampled so; it takes the place of what the line was before."""

    line: int
    sampling: LineSampling


class Mask(msgspec.Struct, frozen=True, array_like=True):
    """What a constrained line may say next: [ceil(V / 32)] int32, bit k % 32 of word k // 32."""

    line: int
    words: bytes


class TableChanges(msgspec.Struct, frozen=True, array_like=True):
    """What has changed by line since the plan before; it counts before the step's rows.

    left     int32 lines that nobody has any more: their sampling, kept logits and lengths go
    pages    [k, 3] int32 line, index in its page table, full page
    windows  [k, 3] int32 line, index in its window, SWA page
    states   [k, 2] int32 line, state
    """

    left: bytes = b""
    pages: bytes = b""
    windows: bytes = b""
    states: bytes = b""


class Copies(msgspec.Struct, frozen=True, array_like=True):
    """Copies, made in order before the forward pass.

    pages    [k, 2] int32 source, destination; so are
    windows  SWA pages
    states   [k, 3] int32 source, destination, position that the source is the state of
    """

    pages: bytes = b""
    windows: bytes = b""
    states: bytes = b""


class Rows(msgspec.Struct, frozen=True, array_like=True):
    """The rows of a step: tokens [start, start + count) of n lines.

    line         [n] int32
    start        [n] int64; where `from_device` is 2, no more than that
    count        [n] int32 tokens, at least 1
    ids          int32 the tokens, row by row; 0 for those that only the device has
    from_device  [n] uint8, or empty for all 0. 1: the first token is the one that was sampled last
                 for the line. 2: and `start` is the length that the device has for the line
    drafts       [n] int32, or empty for all 0. So many of the last tokens are guesses: each is
                 kept if it is what is sampled from the logits before it, and all after the first
                 that is not are dropped
    window_from  [n] int64, or empty for all 0. Positions before it are not read from the window
    write_from   [n] int64, or empty for all 0. Records whose last token is before it are not
                 written

    Each row leaves its window and its state at its end in its own pages and unit.
    """

    line: bytes
    start: bytes
    count: bytes
    ids: bytes
    from_device: bytes = b""
    drafts: bytes = b""
    window_from: bytes = b""
    write_from: bytes = b""


class Saves(msgspec.Struct, frozen=True, array_like=True):
    """Snapshots beside the rows' own: window and state as they are before a position.

    What is saved past the accepted tokens of a row with drafts is of no use.

    row       [m] int32 index of the row
    position  [m] int64 in (start, start + count] of the row
    state     [m] int32 destination; 0 where the network has none
    window    [m, W] int32 destination SWA pages
    """

    row: bytes = b""
    position: bytes = b""
    state: bytes = b""
    window: bytes = b""


class PromptSpan(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of prompt tokens wanted from one row.

    row      index of the row
    start    the logits of positions [start, start + k) are read; told is the value at p + 1
    targets  [k] int32 the tokens at positions start + 1 and following
    top      likeliest tokens told of each position
    ids      int32 tokens whose log-probabilities are told besides
    """

    row: int
    start: int
    targets: bytes
    top: int
    ids: bytes = b""


class StepPlan(msgspec.Struct, frozen=True, array_like=True, tag="plan"):
    """One step: changes, copies, rows, and whose next tokens are sampled from their logits.

    step     number of the plan, one more than that of the plan before
    joins    lines whose sampling begins, after `changes.left`
    sampled  [s, 2] int32 row, line. The token behind the row's last one is sampled as the line
             wants it: the row's own line, or another one with the same prompt
    sampling told of the plan itself; None: a `Sample` follows before the next plan
    """

    version: int
    step: int
    changes: TableChanges
    joins: list[Join]
    copies: Copies
    rows: Rows
    saves: Saves
    sampled: bytes
    spans: list[PromptSpan]
    sampling: "Sample | None" = None


class UnitTransfer(msgspec.Struct, frozen=True, array_like=True):
    """Units of one rank's pools that are copied to another's; see `mem_cache.transfer`.

    giver, taker  ranks
    pages         [k, 2] int32 unit of the giver, unit of the taker; so are
    windows       SWA pages
    states        those of resume points
    """

    giver: int
    taker: int
    pages: bytes = b""
    windows: bytes = b""
    states: bytes = b""


class Exchange(msgspec.Struct, frozen=True, array_like=True):
    """What ranks copy from each other's pools, before anything else of a step.

    step       that takes it along
    early      of each rank: copies in its own pools that are made before, as sources need them
    transfers  made at once: no unit is both read and written
    """

    step: int
    early: list[Copies]
    transfers: list[UnitTransfer]


class Joint(msgspec.Struct, frozen=True, array_like=True, tag="joint"):
    """One step of ranks that have rows of their own.

    step      number of the step, that of all sections
    sections  plan of each rank; None: it has no rows, but takes part, and sends no result
    exchange  made before; there may be one where no rank has a plan
    """

    version: int
    step: int
    sections: list[StepPlan | None]
    exchange: Exchange | None = None


class Sample(msgspec.Struct, frozen=True, array_like=True, tag="sample"):
    """Sample the entries of a launched step.

    masks  of constrained lines, where they are others than before
    keep   int32 lines that are not sampled yet: their logits are kept until `SampleKept`
    rank   whose step, where ranks have rows of their own
    """

    step: int
    masks: list[Mask] = []
    keep: bytes = b""
    rank: int = ALL_RANKS


class SampleKept(msgspec.Struct, frozen=True, array_like=True, tag="sample_kept"):
    """Sample lines whose logits were kept.

    call   number of the command, which its answer bears
    lines  [s] int32
    masks  as in `Sample`
    rank   whose lines, where ranks have rows of their own
    """

    call: int
    lines: bytes
    masks: list[Mask] = []
    rank: int = ALL_RANKS


class Profile(msgspec.Struct, frozen=True, array_like=True, tag="profile"):
    """Start or stop a trace of steps; each rank answers by a line of its own."""

    command: StartProfile | StopProfile


class EntryLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of an entry's tokens."""

    entry: int
    logprobs: PackedLogprobs


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """Why an entry has no usable token."""

    entry: int
    reason: str


class StepResult(msgspec.Struct, frozen=True, array_like=True, tag="result"):
    """What a step produced.

    finite    [n] uint8 whether a row's numbers were finite, sampled or not
    accepted  [s] int32 tokens that each entry of `sampled` goes on with: 0 where it failed or was
              kept, 1, or more where drafts were right
    tokens    int32 these tokens, entry by entry
    spans     log-probabilities of the plan's spans, in its order
    """

    step: int
    finite: bytes
    accepted: bytes
    tokens: bytes
    failures: list[Failure] = []
    logprobs: list[EntryLogprobs] = []
    spans: list[PackedLogprobs] = []


class KeptResult(msgspec.Struct, frozen=True, array_like=True, tag="kept_result"):
    """What `SampleKept` produced, an entry a line; as in `StepResult`."""

    call: int
    accepted: bytes
    tokens: bytes
    failures: list[Failure] = []
    logprobs: list[EntryLogprobs] = []


ToExecutor = StepPlan | Joint | Sample | SampleKept | Profile
FromExecutor = StepResult | KeptResult
