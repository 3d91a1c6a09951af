"""One generation in flight, as the scheduler sees it."""

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from mem_cache.tree.handles import Lock, PointKind
from runtime.grammar.output import GrammarOutput
from runtime.messages import Generate, TokenLogprobs, unpack_ids
from runtime.packed_logprobs import PackedLogprobs
from runtime.scheduler.times import RequestTimes

# 256 tokens: more than what a chat format writes behind a question.
TAIL_BYTES = 1024


class Status(Enum):
    """Where a request stands.

    A suspended one lost its row while a step in flight had it in: it waits again after that.
    """

    WAITING = "waiting"
    SUSPENDED = "suspended"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class PendingPoint:
    """A resume point whose state is saved (or in flight) but whose node is not published yet.

    It holds one reference on each of its SWA pages and on its state. An exact one cannot serve
    the position before its own.
    """

    position: int
    swa_pages: tuple[int, ...]
    state: int
    kind: PointKind
    exact: bool = False


@dataclass(slots=True)
class Holding:
    """What a running request has in the cache, from its admission to its release.

    lock           on the nodes that it shares
    shared_pages   leading pages of the row that belong to the tree; the row holds a reference
                   on each page from here to `num_pages`
    published      tokens the tree has from this request, or had before
    full_matched   tokens whose full pages were there at admission: from `matched` on they are
                   computed again for want of a resume point
    point_evicted  whether one was evicted between `matched` and `full_matched`
    copied         tokens that came from another replica for this admission
    elsewhere      tokens that another replica has, and that are computed again
    window_from    where a replay began, whose window has nothing before; 0: there is none
    write_from     records before this position are there, and not written again
    exact_from     window and state are exact from here on; before it a replay has not got there
    save_positions positions at which a resume point is wanted once prefill passes them, and why
    pending_points resume points on their way into the tree (`PendingPoints`)
    waypoints      resume points that are outside the tree while the request runs (`Waypoints`)
    """

    lock: Lock | None = None
    shared_pages: int = 0
    num_pages: int = 0
    published: int = 0
    full_matched: int = 0
    point_evicted: bool = False
    copied: int = 0
    elsewhere: int = 0
    window_from: int = 0
    write_from: int = 0
    exact_from: int = 0
    save_positions: dict[int, PointKind] = field(default_factory=dict[int, PointKind])
    pending_points: list[PendingPoint] = field(default_factory=list[PendingPoint])
    waypoints: list[PendingPoint] = field(default_factory=list[PendingPoint])


@dataclass(slots=True)
class Outgoing:
    """What a request's client has not been sent yet.

    tokens           sampled ones
    logprobs         of these, where they are asked for
    entries          log-probabilities in `logprobs`
    prompt_logprobs  of the prompt, chunk by chunk
    begun            whether the client was sent anything before
    """

    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    entries: int = 0
    prompt_logprobs: list[PackedLogprobs] = field(default_factory=list[PackedLogprobs])
    begun: bool = False


class Request:
    """Tokens, lengths and holdings of one request.

    The four lengths, in tokens:  0 <= matched <= committed <= scheduled <= total

        [ from the cache )[ written and settled )[ in the step in flight )[ known, not fed )
        0             matched             committed              scheduled            total

    (While a turn has launched a step and not yet settled the one before it, `scheduled` of a row in
    both is one past `total`.)

    target         prefill ends here; `total` at the time of admission, so that a request that
                   was retracted prefills its own output again
    row            its line in the request table while it runs, else -1
    holding        what it has in the cache
    boundaries     positions inside the prompt where other prompts are likely to part from it
    timeout_s      that it may take in all, by its client's wish; None: it has none
    background     nobody waits for it: prefilled for what may come
    constraint     where the output must follow a grammar; it outlives the row
    held           the logits of the last token are kept, as its mask is not known yet
    awaited_at     where the first of those that wait for this prefill will start, if any does
    level          its priority, and what waiting has added to that
    passed         later arrivals of its share and level that got rows before it
    urgency        the highest level of it and of those that wait for it
    logprob_next   next prompt position whose logits are wanted, None when there is none left
    outgoing       what its client has not been sent yet
    unseen_end     it ended with a token in flight that it left in the tree: whether what was
                   computed of that is finite was not known then
    suspect        first page of what it started from when its numbers were not finite: it is
                   computed a second time, all of it; 0: it is not
    tail_hash      of the prompt's end, where most prompts of the same length differ
    reach          where it may start once a prefix is copied from another replica; 0: nowhere
    copied         by how much later it starts for it
    copied_to      how far pieces of such a prefix have come, while more are to come
    prefixes       hashes of the prompt up to each whole page, where there are several replicas
    """

    def __init__(self, message: Generate, eos_token_ids: tuple[int, ...], arrival_s: float) -> None:
        prompt = unpack_ids(message.input_ids)
        sampling = message.sampling
        self.id = message.request_id
        self.namespace = message.namespace
        self.share = message.share
        self.timeout_s = message.timeout_s
        self.priority = self.level = self.urgency = message.priority
        self.passed = 0
        self.awaited_at: int | None = None
        self.stream = message.stream
        self.background = message.background
        self.arrival_s = arrival_s
        self.times = RequestTimes(arrival_s, traced=message.traced)
        self.prompt_tokens = len(prompt)
        self.tail_hash = hash(message.input_ids[-TAIL_BYTES:])
        self.tokens = np.empty(len(prompt) + sampling.max_new_tokens, dtype=np.int32)
        self.tokens[: len(prompt)] = prompt
        self.stop_ids = frozenset(
            sampling.stop_token_ids + (() if sampling.ignore_eos else eos_token_ids)
        )
        self.sampling = sampling
        self.logprobs = message.logprobs
        self.constraint: GrammarOutput | None = None
        self.held = self.unseen_end = False
        self.suspect = 0
        self.logprob_next = self._first_logprob
        self.status = Status.WAITING
        self.total = len(prompt)
        self.target = self.matched = self.committed = self.scheduled = 0
        self.row = -1
        self.holding = Holding()
        self.boundaries = message.boundaries
        self.prefixes: tuple[int, ...] = ()
        self.reach = self.copied = self.copied_to = 0
        self.common: dict[int, int] = {}
        self.cached_tokens: int | None = None
        self.outgoing = Outgoing()

    @property
    def seen(self) -> int:
        """Return how many tokens are in the tree and were computed by settled steps, too.

        What others have published may go on behind it: the step in flight may not be finite.
        """
        return min(self.holding.published, self.committed)

    @property
    def match_limit(self) -> int:
        """Most tokens that may come from the cache: one is always computed, and every
        position whose logits are still wanted."""
        if self.suspect:
            return 0
        limit = self.total - 1
        return limit if self.logprob_next is None else min(limit, self.logprob_next)

    @property
    def goal(self) -> int:
        """Where its prefill serves somebody next: a request that waits, or itself."""
        at = self.awaited_at
        return self.target if at is None or at <= self.scheduled else min(at, self.target)

    def await_nobody(self) -> None:
        """Forget who waits for this prefill."""
        self.awaited_at, self.urgency = None, self.level

    def await_by(self, other: "Request", position: int) -> None:
        """Note that `other` waits until this prefill is at `position`, to start there."""
        nearest = position if self.awaited_at is None else min(position, self.awaited_at)
        self.awaited_at, self.urgency = nearest, max(self.urgency, other.level)

    @property
    def output_tokens(self) -> int:
        """Tokens sampled so far."""
        return self.total - self.prompt_tokens

    @property
    def has_more(self) -> bool:
        """Whether a decode step may follow all that is scheduled: there is room for its token."""
        return self.scheduled + 1 < len(self.tokens)

    @property
    def is_ready(self) -> bool:
        """Whether the next token can be sampled: what its grammar allows is known."""
        return self.constraint is None or self.constraint.allowed is not None

    @property
    def has_chunk_in_flight(self) -> bool:
        """Whether the step in flight computes a part of its prompt."""
        return self.status is Status.PREFILL and self.scheduled > self.committed

    def constrain(self, constraint: GrammarOutput) -> None:
        """Have the output follow a grammar from now on."""
        self.constraint = constraint

    def start(self, row: int, position: int) -> None:
        """Compute the prompt, and what was sampled behind it, in a row from `position` on."""
        self.row, self.status = row, Status.PREFILL
        self.matched = self.committed = self.scheduled = position
        self.target = self.total

    def leave_row(self) -> None:
        """Hold nothing any more; what is known of the output stays."""
        self.row, self.holding = -1, Holding()
        self.matched = self.committed = self.scheduled = 0

    def note_brought(self, elsewhere: int) -> None:
        """Note what of the matched prefix was copied for this admission, as it begins.

        elsewhere  tokens that another replica has, and that are computed again
        """
        self.holding.copied = min(self.copied, self.matched)
        self.holding.elsewhere = elsewhere
        self.reach = self.copied = self.copied_to = 0

    @property
    def _first_logprob(self) -> int | None:
        """The first prompt position whose logits are wanted; None: those of none are."""
        wanted = self.logprobs
        return None if wanted is None or wanted.start >= self.prompt_tokens - 1 else wanted.start

    def doubt_prompt_logprobs(self) -> bool:
        """Have the log-probabilities of its prompt computed again, unless they are told already."""
        if self.outgoing.begun or self._first_logprob is None:
            return False
        self.outgoing.prompt_logprobs.clear()
        self.logprob_next = self._first_logprob
        return True

    def append(self, token: int) -> None:
        """Add a sampled token."""
        self.tokens[self.total] = token
        self.total += 1

    def common_tokens(self, other: "Request") -> int:
        """Return how many leading tokens both have; computed once per pair of prefills."""
        known = self.common.get(other.id)
        if known is None:
            mine, theirs = self.tokens[: self.total], other.tokens[: other.target]
            length = min(len(mine), len(theirs))
            differ = mine[:length] != theirs[:length]
            known = int(differ.argmax()) if differ.any() else length
            self.common[other.id] = known
        return known

    def is_twin_of(self, other: "Request") -> bool:
        """Whether this one's first token can be sampled from the logits of `other`'s prompt."""
        return (
            self.total == self.prompt_tokens == other.target == other.prompt_tokens
            and self.tail_hash == other.tail_hash
            and self.namespace == other.namespace
            and self.logprob_next is None
            and self.is_ready
            and self.sampling.max_new_tokens > 0
            and self.common_tokens(other) == self.total
        )

    def check(self) -> None:
        """Raise AssertionError unless the four lengths are in order."""
        lengths = (self.matched, self.committed, self.scheduled, self.total)
        assert 0 <= lengths[0] <= lengths[1] <= lengths[2] <= lengths[3], (self.id, lengths)
