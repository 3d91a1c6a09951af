"""A model runner that stores prefix hashes where the network stores KV, and checks every read.

Each position's "KV" is a hash of all tokens up to it. A step reads what the network would read
(all full pages before the chunk, the window, the ring) and raises ReadFault where a slot holds
anything but the hash of the row's own prefix. The next token is a function of the last hash, so
a test knows the right output of a request from its tokens alone.

It computes inside `launch`, as a device does in its own order: what was launched before is there.
"""

import numpy as np

from mem_cache.spec import PoolSizes, TreeSpec
from runtime.wire.arrays import FLOAT32, INT32, UINT8, packed, unpacked
from runtime.wire.step import (
    NOT_FINITE_REASON,
    EntryLogprobs,
    Failure,
    KeptResult,
    LineSampling,
    PackedLogprobs,
    PromptSpan,
    Sample,
    SampleKept,
    StepPlan,
    StepResult,
)
from tests.testing.bad_numbers import BadNumbers
from tests.testing.masked_tokens import allowed_token
from tests.testing.plan_arrays import PlanArrays, PlanReader
from tests.testing.token_draws import Drawn, SampledRow

RING_ROWS = 8
BANKS = 2
POISON = np.uint64(0xDEAD_DEAD_DEAD_DEAD)


class ReadFault(AssertionError):
    """A slot held something else than the row's own prefix."""


def mix(previous: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Return the hashes after `tokens` [n], given the hashes before them [n]; both uint64."""
    with np.errstate(over="ignore"):
        value = (previous ^ (tokens.astype(np.uint64) + np.uint64(0x9E37_79B9))) * np.uint64(
            0xBF58_476D_1CE4_E5B9
        )
        return value ^ (value >> np.uint64(29))


def prefix_hashes(tokens: np.ndarray, before: np.uint64 = np.uint64(1)) -> np.ndarray:
    """Return the hash after each token of `tokens`."""
    hashes = np.empty(len(tokens), dtype=np.uint64)
    state = np.array([before], dtype=np.uint64)
    for i, token in enumerate(tokens):
        state = mix(state, np.array([token]))
        hashes[i] = state[0]
    return hashes


def next_token(last_hash: np.uint64, vocab: int) -> int:
    """Return the token that follows a prefix."""
    return int(last_hash >> np.uint64(7)) % vocab


def expected_output(prompt: list[int], count: int, vocab: int) -> list[int]:
    """Return the `count` tokens that follow `prompt`."""
    state = prefix_hashes(np.array(prompt))[-1]
    out: list[int] = []
    for _ in range(count):
        out.append(next_token(state, vocab))
        state = mix(np.array([state]), np.array([out[-1]]))[0]
    return out


def ruled_output(
    prompt: list[int], count: int, vocab: int, *, after: int | None, mask: np.ndarray
) -> list[int]:
    """Return the `count` tokens that follow `prompt`, those behind the first `after` by a mask.

    after  None: all of them
    """
    out: list[int] = []
    for _ in range(count):
        begun = after is None or after in out
        [token] = expected_output([*prompt, *out], 1, vocab)
        out.append(allowed_token(token, vocab, mask if begun else None))
    return out


class OrderFault(AssertionError):
    """A step was launched or asked for out of order."""


class _Forwarded:
    """A step whose hashes are stored; `sample` picks the tokens."""

    forwarded = halfway = True

    def __init__(
        self,
        runner: "TokenRunner",
        plan: PlanArrays,
        chunks: list[np.ndarray],
        *,
        finite: np.ndarray,
    ) -> None:
        self._runner = runner
        self._plan = plan
        self._chunks = chunks
        self._rows_finite = finite
        self._entries: list[int] = []
        self.drawn: Drawn | None = None

    def sample(self, command: Sample) -> None:
        """Pick the tokens of all entries but those that are kept."""
        plan, runner = self._plan, self._runner
        if self.drawn is not None or runner.open_steps[-1] is not self:
            raise OrderFault("a step is sampled again, or over the logits of the next one")
        if command.step != plan.plan.step:
            raise OrderFault(f"step {plan.plan.step} is sampled as {command.step}")
        lines = plan.sampled_line.tolist()
        if len(runner.open_steps) > 1 and any(runner.states[k].constrained for k in lines):
            raise OrderFault("a row with a grammar is sampled before its output is known")
        runner.take_masks(command)
        keep = set(unpacked(command.keep, INT32).tolist())
        self._entries = [k for k, line in enumerate(lines) if line not in keep]
        for k, line in enumerate(lines):
            if line in keep:
                runner.kept[line] = self._logits(k)
        self.drawn = runner.draw([(lines[k], *self._logits(k)) for k in self._entries])

    def result(self) -> StepResult:
        """Return what was picked."""
        self._runner.settle(self)
        drawn, plan = self.drawn, self._plan
        if drawn is None:
            raise OrderFault("the result of a step that was not sampled")
        return StepResult(
            plan.plan.step,
            finite=packed(self._finite(drawn), UINT8),
            accepted=drawn.accepted(self._entries, len(plan.sampled)),
            tokens=drawn.usable,
            failures=[Failure(self._entries[k], why) for k, why in drawn.failed.items()],
            logprobs=[EntryLogprobs(self._entries[o.entry], o.logprobs) for o in drawn.logprobs],
            spans=[self._span(span) for span in plan.spans],
        )

    def _finite(self, drawn: Drawn) -> np.ndarray:
        bad = [self._entries[k] for k, why in drawn.failed.items() if why == NOT_FINITE_REASON]
        self._rows_finite[self._plan.sampled[bad]] = False
        return self._rows_finite

    def _logits(self, k: int) -> tuple[np.uint64, int]:
        hashes = self._chunks[int(self._plan.sampled[k])]
        return hashes[-1], len(hashes)

    def _span(self, span: PromptSpan) -> PackedLogprobs:
        ids, asked = unpacked(span.targets, INT32), len(unpacked(span.ids, INT32))
        values = np.zeros((len(ids), 1 + asked))
        values[:, 0] = self._chunks[span.row][span.start : span.start + len(ids)] % np.uint64(97)
        return PackedLogprobs(0, packed(ids, INT32), packed(values, FLOAT32))


class TokenRunner:
    """Pools of hashes; see the module docstring. Unit 0 of each pool is the dummy.

    A row's logits are its last hash. What a grammar does not allow is not picked: the next token
    above that is allowed is.

    in_flight    of each step launched, how many before it were not settled then: 0 or 1
    fail_tokens  whoever samples one of them has none, for the reason `why_failed`
    bad          what makes the numbers of rows that are not finite
    """

    def __init__(
        self, spec: TreeSpec, sizes: PoolSizes, *, vocab: int = 50, replay_tokens: int | None = None
    ) -> None:
        # How long after the start of a replay its windows and rings hold nothing true.
        self.fading = 0 if replay_tokens is None else replay_tokens - (spec.window or RING_ROWS)
        self.spec = spec
        self.vocab = vocab
        self.full = np.full((sizes.full_pages + 1, spec.page_size), POISON)
        self.tokens = np.zeros((sizes.full_pages + 1, spec.page_size), dtype=np.int64)
        self.swa = np.full((sizes.swa_pages + 1, spec.swa_page_size), POISON)
        self.ring_rows = np.full((sizes.states + 1, RING_ROWS), POISON)
        self.banks = np.full((sizes.states + 1, BANKS), POISON)
        self.computed_tokens = self.steps = 0
        self.in_flight: list[int] = []
        self.fail_tokens, self.why_failed = set[int](), NOT_FINITE_REASON
        self.bad = BadNumbers(spec.page_size)
        self.open_steps: list[_Forwarded] = []
        self.states: dict[int, LineSampling] = {}
        self.kept: dict[int, tuple[np.uint64, int]] = {}
        self._outputs: dict[int, list[int]] = {}
        self._masks: dict[int, np.ndarray] = {}
        self._last: dict[int, int] = {}
        self._reader = PlanReader(spec)

    def launch(self, plan: StepPlan) -> _Forwarded:
        """Run the copies, check all reads, store, and pick tokens where the plan says how."""
        self.steps += 1
        self._update(plan)
        step = self._forward(self._reader.read(plan))
        self.open_steps.append(step)
        if plan.sampling is not None:
            step.sample(plan.sampling)
        return step

    def _forward(self, plan: PlanArrays) -> _Forwarded:
        if len(self.open_steps) > 1 or any(step.drawn is None for step in self.open_steps):
            raise OrderFault("a step is launched before the one before it is sampled")
        self.in_flight.append(len(self.open_steps))
        input_ids = self._fed(plan)
        for source, destination in plan.page_copies:
            self.full[destination] = self.full[source]
            self.tokens[destination] = self.tokens[source]
            self.bad.copied(source, destination)
        for source, destination in plan.swa_copies:
            self.swa[destination] = self.swa[source]
        for source, destination in plan.ring_copies:
            self.ring_rows[destination] = self.ring_rows[source]
            self.banks[destination] = self.banks[source]
        ends = np.cumsum(plan.chunk_len)
        chunks = [
            self._run_row(plan, i, input_ids[end - int(count) : end])
            for i, (end, count) in enumerate(zip(ends, plan.chunk_len, strict=True))
        ]
        # A save reads the state before the step, also where another one replaces it.
        before = self.ring_rows.copy(), self.banks.copy(), self.swa.copy()
        for k in range(len(plan.save_row)):
            self._save(plan, k, chunks[int(plan.save_row[k])], before)
        self.computed_tokens += len(plan.input_ids)
        return _Forwarded(self, plan, chunks, finite=self.bad.finite(plan, input_ids))

    def _update(self, plan: StepPlan) -> None:
        """Let lines leave and join."""
        for line in unpacked(plan.changes.left, INT32).tolist():
            for known in (self.states, self.kept, self._outputs, self._masks, self._last):
                known.pop(line, None)
        for join in plan.joins:
            self.states[join.line] = join.sampling
            self._outputs[join.line] = unpacked(join.sampling.output, INT32).tolist()
            self._masks.pop(join.line, None)

    def take_masks(self, command: Sample | SampleKept) -> None:
        """Take in what lines may say next."""
        for mask in command.masks:
            self._masks[mask.line] = unpacked(mask.words, INT32)

    @property
    def overlapped(self) -> int:
        """How many steps were launched before the one before them was settled."""
        return sum(self.in_flight)

    def settle(self, step: _Forwarded) -> None:
        """Note that the host asks for the result of a step."""
        if self.open_steps[0] is not step:
            raise OrderFault("a result is asked for out of order, or again")
        del self.open_steps[0]

    def _fed(self, plan: PlanArrays) -> np.ndarray:
        """Return the input ids, with those that were drawn last."""
        if (plan.chunk_len[plan.feed] != 1).any():
            raise OrderFault("a chunk is fed")
        places = np.cumsum(plan.chunk_len)[plan.feed] - 1
        if plan.input_ids[places].any():
            raise OrderFault("a row that is fed has an input id as well")
        ids = plan.input_ids.copy()
        for place, line in zip(places, plan.line[plan.feed].tolist(), strict=True):
            if line not in self._last:
                raise OrderFault(f"line {line} is fed, and nothing was sampled for it")
            ids[place] = self._last[line]
        return ids

    def sample_kept(self, command: SampleKept) -> KeptResult:
        """Pick tokens of lines whose hash was kept."""
        self.take_masks(command)
        lines = unpacked(command.lines, INT32).tolist()
        drawn = self.draw([(line, *self.kept.pop(line)) for line in lines])
        return KeptResult(
            command.call,
            accepted=drawn.accepted([*range(len(lines))], len(lines)),
            tokens=drawn.usable,
            failures=[Failure(k, why) for k, why in drawn.failed.items()],
            logprobs=drawn.logprobs,
        )

    def draw(self, rows: list[tuple[int, np.uint64, int]]) -> Drawn:
        """Return the token that follows each (line, hash, position)."""
        drawn = Drawn()
        for k, (line, logits, position) in enumerate(rows):
            state, output = self.states[line], self._outputs[line]
            mask = self._masks.get(line)
            if state.constrained and mask is None:
                raise OrderFault(f"line {line} is sampled without a mask")
            row = SampledRow(line, logits, position, state, output, mask)
            token = self._pick(row)
            drawn.tokens.append(token)
            if token in self.fail_tokens:
                drawn.failed[k] = self.why_failed
            elif (logprobs := self._logprobs(row, token)) is not None:
                drawn.logprobs.append(EntryLogprobs(k, logprobs))
            output.append(token)
            self._last[line] = token
        return drawn

    def _pick(self, row: SampledRow) -> int:
        return allowed_token(next_token(row.logits, self.vocab), self.vocab, row.mask)

    def _logprobs(self, row: SampledRow, token: int) -> PackedLogprobs | None:
        """Return what is told of a token; None: nothing."""
        return None

    def _run_row(self, plan: PlanArrays, i: int, tokens: np.ndarray) -> np.ndarray:
        start, count = int(plan.chunk_start[i]), len(tokens)
        pages = plan.page_table[i]
        before = self._check_pages(pages, start)
        replay = int(plan.window_from[i])
        exact = replay + self.fading if replay else 0
        stored = before.copy()
        stored[:exact] = POISON
        self._check_window(plan, i, stored)
        if self.spec.has_state and (start > replay or not replay):
            self._check_ring(int(plan.ring[i]), stored, replay)
        hashes = prefix_hashes(tokens, before[-1] if start else np.uint64(1))
        positions = np.arange(start, start + count)
        page = pages[positions // self.spec.page_size]
        self.bad.pages.difference_update(page[positions % self.spec.page_size == 0].tolist())
        if (page == 0).any():
            raise ReadFault(f"row {i} writes the dummy page")
        kept = positions >= plan.write_from[i]
        offset = positions % self.spec.page_size
        there = self.full[page[~kept], offset[~kept]]
        if (there != hashes[~kept]).any():
            raise ReadFault(f"row {i} relies on records before {plan.write_from[i]} that differ")
        if (positions[kept] < exact).any():
            raise ReadFault(f"row {i} publishes records of a replay that is not exact yet")
        self.full[page[kept], offset[kept]] = hashes[kept]
        self.tokens[page[kept], offset[kept]] = tokens[kept]
        hashes[positions < exact] = POISON
        return np.concatenate([stored, hashes])

    def _check_pages(self, pages: np.ndarray, start: int) -> np.ndarray:
        positions = np.arange(start)
        page, offset = pages[positions // self.spec.page_size], positions % self.spec.page_size
        hashes, tokens = self.full[page, offset], self.tokens[page, offset]
        if start:
            previous = np.concatenate([np.array([1], dtype=np.uint64), hashes[:-1]])
            wrong = np.flatnonzero(mix(previous, tokens) != hashes)
            if len(wrong):
                raise ReadFault(f"full page of position {wrong[0]} is not of this prefix")
        return hashes

    def _check_window(self, plan: PlanArrays, i: int, before: np.ndarray) -> None:
        start, size = len(before), self.spec.swa_page_size
        first = max(0, int(plan.window_from[i]), start - (self.spec.window - 1))
        positions = np.arange(first, start)
        page = plan.window[i][(positions // size) % self.spec.window_pages]
        wrong = np.flatnonzero(self.swa[page, positions % size] != before[first:])
        if len(wrong):
            raise ReadFault(f"window of row {i}: position {positions[wrong[0]]} of {start}")

    def _check_ring(self, ring: int, before: np.ndarray, replay: int) -> None:
        start = len(before)
        if not start:
            return
        positions = np.arange(max(0, replay, start - (RING_ROWS - 1)), start)
        if (self.ring_rows[ring, positions % RING_ROWS] != before[positions]).any():
            raise ReadFault(f"ring {ring} is not the one before position {start}")
        if self.banks[ring, (start - 1) % BANKS] != before[-1]:
            raise ReadFault(f"bank of ring {ring} is not the one before position {start}")

    def _save(
        self,
        plan: PlanArrays,
        k: int,
        hashes: np.ndarray,
        before: tuple[np.ndarray, np.ndarray, np.ndarray],
    ) -> None:
        row, position = int(plan.save_row[k]), int(plan.save_position[k])
        start, size = int(plan.chunk_start[row]), self.spec.swa_page_size
        slots = self.spec.window_pages
        for p in range(max(0, position - self.spec.window), position):
            source = int(plan.window[row][(p // size) % slots])
            destination = int(plan.save_window[k][(p // size) % slots])
            if p < int(plan.window_from[row]) or (p < start and source == destination):
                continue
            if destination == 0:
                raise ReadFault(f"save {k} writes the dummy SWA page")
            value = hashes[p] if p >= start else before[2][source, p % size]
            self.swa[destination, p % size] = value
        source_ring, ring = int(plan.ring[row]), int(plan.save_ring[k])
        old_rows, old_banks = before[0][source_ring], before[1][source_ring]
        for p in range(max(0, position - RING_ROWS), position):
            slot = p % RING_ROWS
            self.ring_rows[ring, slot] = hashes[p] if p >= start else old_rows[slot]
        for p in range(max(0, position - BANKS), position):
            bank = p % BANKS
            self.banks[ring, bank] = hashes[p] if p >= start else old_banks[bank]
