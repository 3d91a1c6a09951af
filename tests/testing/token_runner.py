"""A model runner that stores prefix hashes where the network stores KV, and checks every read.

Each position's "KV" is a hash of all tokens up to it. A step reads what the network would read
(all full pages before the chunk, the window, the ring) and raises ReadFault where a slot holds
anything but the hash of the row's own prefix. The next token is a function of the last hash, so
a test knows the right output of a request from its tokens alone.

It computes inside `launch`, as a device does in its own order: what was launched before is there.
"""

import numpy as np

from mem_cache.spec import PoolSizes, TreeSpec
from runtime.executor.step_plan import HeldRow, StepPlan, StepResult
from runtime.messages import TokenLogprobs

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


def allowed_token(token: int, vocab: int, mask: np.ndarray | None) -> int:
    """Return a token if it is allowed, else the next one above that is; None: all are."""
    if mask is None:
        return token
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return next(t for i in range(vocab) if bits[t := (token + i) % vocab])


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

    def __init__(self, runner: "TokenRunner", plan: StepPlan, chunks: list[np.ndarray]) -> None:
        self._runner = runner
        self._plan = plan
        self._chunks = chunks
        self.drawn: StepResult | None = None

    def sample(self) -> dict[int, HeldRow]:
        """Pick the token of each row that is ready; 0 for the others."""
        plan, open_steps = self._plan, self._runner.open_steps
        if self.drawn is not None or open_steps[-1] is not self:
            raise OrderFault("a step is sampled again, or over the logits of the next one")
        if len(open_steps) > 1 and any(sample.reads_output for sample in plan.samples):
            raise OrderFault("a row that reads its output is sampled before that is known")
        rows = [self._row(k) for k in range(len(plan.samples))]
        held = {k: row for k, row in enumerate(rows) if not row.sample.is_ready}
        self.drawn = self._runner.sample([row for row in rows if row.sample.is_ready])
        for k in held:
            self.drawn.token_ids.insert(k, 0)
            self.drawn.failed.insert(k, "held")
            self.drawn.logprobs.insert(k, None)
        self.drawn.prompt_logprobs = [
            TokenLogprobs(
                values=[
                    float(self._chunks[s.row][p] % np.uint64(97)) for p in range(s.start, s.stop)
                ],
                ids=[int(t) for t in s.targets],
            )
            for s in plan.prompt_logprobs
        ]
        return held

    def result(self) -> StepResult:
        """Return what was picked."""
        self._runner.settle(self)
        if self.drawn is None:
            raise OrderFault("the result of a step that was not sampled")
        return self.drawn

    def _row(self, k: int) -> HeldRow:
        plan = self._plan
        hashes = self._chunks[int(plan.sampled[k])]
        return HeldRow(hashes[-1], plan.samples[k], int(plan.positions[k]))


class TokenRunner:
    """Pools of hashes; see the module docstring. Unit 0 of each pool is the dummy.

    A row's logits are its last hash. What a grammar does not allow is not picked: the next token
    above that is allowed is.

    in_flight  of each step launched, how many before it were not settled then: 0 or 1
    """

    def __init__(
        self, spec: TreeSpec, sizes: PoolSizes, *, vocab: int = 50, replay_tokens: int | None = None
    ) -> None:
        # How long after the start of a replay its windows and rings hold nothing true.
        self.fading = 0 if replay_tokens is None else replay_tokens - spec.window
        self.spec = spec
        self.vocab = vocab
        self.full = np.full((sizes.full_pages + 1, spec.page_size), POISON)
        self.tokens = np.zeros((sizes.full_pages + 1, spec.page_size), dtype=np.int64)
        self.swa = np.full((sizes.swa_pages + 1, spec.swa_page_size), POISON)
        self.ring_rows = np.full((sizes.rings + 1, RING_ROWS), POISON)
        self.banks = np.full((sizes.rings + 1, BANKS), POISON)
        self.computed_tokens = 0
        self.steps = 0
        self.in_flight: list[int] = []
        self.fail_tokens: set[int] = set()
        self.open_steps: list[_Forwarded] = []
        self._last: _Forwarded | None = None

    def launch(self, plan: StepPlan) -> _Forwarded:
        """Run the copies, check all reads, and store."""
        self.steps += 1
        if len(self.open_steps) > 1 or any(step.drawn is None for step in self.open_steps):
            raise OrderFault("a step is launched before the one before it is sampled")
        self.in_flight.append(len(self.open_steps))
        input_ids = self._fed(plan)
        for source, destination in plan.page_copies:
            self.full[destination] = self.full[source]
            self.tokens[destination] = self.tokens[source]
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
        self._last = _Forwarded(self, plan, chunks)
        self.open_steps.append(self._last)
        return self._last

    @property
    def overlapped(self) -> int:
        """How many steps were launched before the one before them was settled."""
        return sum(self.in_flight)

    def settle(self, step: _Forwarded) -> None:
        """Note that the host asks for the result of a step."""
        if self.open_steps[0] is not step:
            raise OrderFault("a result is asked for out of order, or again")
        del self.open_steps[0]

    def _fed(self, plan: StepPlan) -> np.ndarray:
        """Return the input ids, with those that the step before drew."""
        if plan.feed is None:
            return plan.input_ids
        if self._last is None or self._last.drawn is None:
            raise OrderFault("a row is fed from a step that was not sampled")
        fed = plan.feed >= 0
        if (plan.chunk_len[fed] != 1).any():
            raise OrderFault("a chunk is fed")
        places = np.cumsum(plan.chunk_len)[fed] - 1
        if plan.input_ids[places].any():
            raise OrderFault("a row that is fed has an input id as well")
        ids = plan.input_ids.copy()
        ids[places] = np.array(self._last.drawn.token_ids)[plan.feed[fed]]
        return ids

    def sample(self, rows: list[HeldRow]) -> StepResult:
        """Return the token that follows each row's hash."""
        assert all(row.sample.is_ready for row in rows)
        tokens = [self._pick(row) for row in rows]
        failed = ["logits are not finite" if t in self.fail_tokens else None for t in tokens]
        return StepResult(tokens, failed, [None] * len(tokens), [])

    def _pick(self, row: HeldRow) -> int:
        constraint = row.sample.constraint
        mask = None if constraint is None else constraint.allowed
        return allowed_token(next_token(row.logits, self.vocab), self.vocab, mask)

    def _run_row(self, plan: StepPlan, i: int, tokens: np.ndarray) -> np.ndarray:
        start, count = int(plan.chunk_start[i]), len(tokens)
        pages = plan.page_table[i]
        before = self._check_pages(pages, start)
        replay = int(plan.window_from[i])
        exact = replay + self.fading if replay else 0
        stored = before.copy()
        stored[:exact] = POISON
        self._check_window(plan, i, stored)
        if start > replay or not replay:
            self._check_ring(int(plan.ring[i]), stored, replay)
        hashes = prefix_hashes(tokens, before[-1] if start else np.uint64(1))
        positions = np.arange(start, start + count)
        page = pages[positions // self.spec.page_size]
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

    def _check_window(self, plan: StepPlan, i: int, before: np.ndarray) -> None:
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
        plan: StepPlan,
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
