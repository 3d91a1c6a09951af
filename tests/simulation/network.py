"""An executor on simulated pool memory: each token is computed from what its row reads there.

A page that is wrong, stale, freed too early or written too late gives another token; nothing here
knows what a slot should hold. Plans and results pass through the encoding of the wire.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from mem_cache.spec import PoolSizes, TreeSpec
from runtime.executor.line_tables import LineTables
from runtime.executor.plan_rows import PlanRows, sampled_entries
from runtime.wire.arrays import FLOAT32, INT32, INT64, UINT8, packed, unpacked
from runtime.wire.step import (
    NOT_FINITE_REASON,
    Copies,
    EntryLogprobs,
    Exchange,
    Failure,
    FromExecutor,
    KeptResult,
    LineSampling,
    PackedLogprobs,
    PromptSpan,
    SampleKept,
    Saves,
    StepPlan,
    StepResult,
    ToExecutor,
    UnitTransfer,
)
from tests.simulation.recurrence import BAD, RING, WEIGHTS, Positions, choose

_BAD = np.uint64(BAD)
_ENCODER = msgspec.msgpack.Encoder()
_PLANS: msgspec.msgpack.Decoder[ToExecutor] = msgspec.msgpack.Decoder(ToExecutor)  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
_RESULTS: msgspec.msgpack.Decoder[FromExecutor] = msgspec.msgpack.Decoder(FromExecutor)  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]


class Misuse(AssertionError):
    """The executor was asked for something out of order, or for a slot that there is not."""


@dataclass(slots=True)
class Ran:
    """One row of a step that ran.

    kind    "chunk", "decode" or "replay"
    start   of its tokens, of which there are `count`
    base    first position whose window values are in `first` and `second`
    before  the state that it started from
    kept    first position whose record is written
    finite  whether all that it read and computed was
    records of its positions
    """

    line: int
    kind: str
    start: int
    count: int
    base: int = 0
    kept: int = 0
    first: list[int] = field(default_factory=list[int])
    second: list[int] = field(default_factory=list[int])
    before: list[int] = field(default_factory=list[int])
    finite: bool = True
    records: list[int] = field(default_factory=list[int])


class Memory:
    """Pools of one replica; unit 0 of each is the dummy. All values are uint64.

    records        [pages + 1, page_size]
    first, second  [SWA pages + 1, swa_page_size]
    ring           [states + 1, RING]
    """

    def __init__(self, spec: TreeSpec, sizes: PoolSizes) -> None:
        self.spec = spec
        self.records = np.full((sizes.full_pages + 1, spec.page_size), 1, np.uint64)
        self.first = np.full((sizes.swa_pages + 1, spec.swa_page_size), 2, np.uint64)
        self.second = np.full((sizes.swa_pages + 1, spec.swa_page_size), 3, np.uint64)
        self.ring = np.full((sizes.states + 1, RING), 4, np.uint64)

    @property
    def groups(self) -> tuple[tuple[np.ndarray, ...], ...]:
        """Arrays whose units are full pages, SWA pages and states."""
        return (self.records,), (self.first, self.second), (self.ring,)

    def copy(self, copies: Copies) -> None:
        """Make copies in their order."""
        kinds = ((copies.pages, 2), (copies.windows, 2), (copies.states, 3))
        for arrays, (data, width) in zip(self.groups, kinds, strict=True):
            if data:
                for source, target, *_ in unpacked(data, INT32, -1, width).tolist():
                    for array in arrays:
                        array[target] = array[source]

    def window_slots(self, window: np.ndarray, low: int, high: int) -> tuple[np.ndarray, ...]:
        """Return page and offset of positions [low, high) in a line's window, each [n]."""
        at = np.arange(low, high)
        size = self.spec.swa_page_size
        return window[(at // size) % self.spec.window_pages], at % size


def exchange_units(memories: Sequence[Memory], exchange: Exchange) -> None:
    """Make the copies of an exchange; all sources are read before any target is written."""
    for memory, copies in zip(memories, exchange.early, strict=True):
        memory.copy(copies)
    read: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for one in exchange.transfers:
        kinds = _pairs(one)
        giver, taker = memories[one.giver].groups, memories[one.taker].groups
        for pairs, sources, targets in zip(kinds, giver, taker, strict=True):
            read += [(a[pairs[0]], b, pairs[1]) for a, b in zip(sources, targets, strict=True)]
    for values, array, units in read:
        array[units] = values


def _pairs(one: UnitTransfer) -> list[np.ndarray]:
    return [
        unpacked(data, INT32, -1, 2).T if data else np.zeros((2, 0), np.int32)
        for data in (one.pages, one.windows, one.states)
    ]


class Network:
    """Runs the steps of one replica at once, as a device does in its own order.

    lines    that rows may have
    spoil    makes some rows of a step not finite before they are computed
    rows     of the last step
    """

    def __init__(
        self,
        spec: TreeSpec,
        sizes: PoolSizes,
        *,
        lines: int,
        pages: int,
        spoil: Callable[[Sequence[Ran]], None] = lambda rows: None,
    ) -> None:
        self.spec = spec
        self.memory = Memory(spec, sizes)
        self._tables = LineTables(lines, pages=pages, window_pages=spec.window_pages)
        self._spoil = spoil
        self._sampling: dict[int, tuple[LineSampling, frozenset[int]]] = {}
        self._last: dict[int, int] = {}
        self._step = 0
        self.rows: list[Ran] = []

    def run(self, plan: StepPlan) -> StepResult:
        """Run a step, and return what it produces."""
        message = _PLANS.decode(_ENCODER.encode(plan))
        if not isinstance(message, StepPlan):
            raise Misuse("a plan became another message on the wire")
        result = _RESULTS.decode(_ENCODER.encode(self._run(message)))
        assert isinstance(result, StepResult)
        return result

    def _run(self, plan: StepPlan) -> StepResult:
        if plan.step <= self._step:
            raise Misuse(f"step {plan.step} comes after step {self._step}")
        self._step = plan.step
        self._join(plan)
        rows = PlanRows.of(plan.rows)
        self.memory.copy(plan.copies)
        ids = self._fed(rows)
        ends = np.cumsum(rows.count).tolist()
        self.rows = rans = [self._describe(rows, k) for k in range(len(ends))]
        self._spoil(rans)
        for k, ran in enumerate(rans):
            self._read_state(rows, k, ran)
        for k, (ran, end) in enumerate(zip(rans, ends, strict=True)):
            self._compute(rows, k, ran, ids[end - ran.count : end])
        self._save(plan.saves, rans)
        return self._sampled(plan, rans)

    def sample_kept(self, command: SampleKept) -> KeptResult:
        """Without grammars no logits are kept."""
        raise Misuse("nothing is kept")

    # --- lines

    def _join(self, plan: StepPlan) -> None:
        self._tables.apply(plan.changes)
        for line in unpacked(plan.changes.left, INT32).tolist():
            self._sampling.pop(line, None)
            self._last.pop(line, None)
        for join in plan.joins:
            stops = frozenset(unpacked(join.sampling.stop_ids, INT32).tolist())
            self._sampling[join.line] = join.sampling, stops

    def _fed(self, rows: PlanRows) -> list[int]:
        """Return the input ids, with those that only the device has."""
        ids: list[int] = rows.ids.tolist()
        places = (rows.last_index - rows.count + 1).tolist()
        for row in rows.fed.tolist():
            line = int(rows.line[row])
            if line not in self._last:
                raise Misuse(f"line {line} is fed, and nothing was sampled for it")
            ids[places[row]] = self._last[line]
        return ids

    def _describe(self, rows: PlanRows, k: int) -> Ran:
        line, start, count = int(rows.line[k]), int(rows.start[k]), int(rows.count[k])
        kind = "decode" if rows.from_device[k] else "chunk"
        if rows.window_from[k] and start < rows.write_from[k]:
            kind = "replay"
        return Ran(line, kind, start, count)

    # --- a row

    def _read_state(self, rows: PlanRows, k: int, ran: Ran) -> None:
        """Read the window and the state that a row starts from."""
        spec, memory = self.spec, self.memory
        ran.base = max(0, int(rows.window_from[k]), ran.start - spec.window)
        if spec.window and ran.start > ran.base:
            slots = memory.window_slots(self._tables.window[ran.line], ran.base, ran.start)
            ran.first, ran.second = memory.first[slots].tolist(), memory.second[slots].tolist()
        if spec.has_state:
            ran.before = memory.ring[self._tables.state[ran.line]].tolist()

    def _compute(self, rows: PlanRows, k: int, ran: Ran, ids: list[int]) -> None:
        """Compute a row from what it reads, and write what it computed."""
        spec, start, end = self.spec, ran.start, ran.start + ran.count
        pages = self._tables.pages[ran.line, : -(-end // spec.page_size)]
        if not pages.all():
            raise Misuse(f"line {ran.line} has no page for one of {end} positions")
        read = self.memory.records[pages].ravel()
        ring_from = int(rows.window_from[k])
        kept = min(max(start, int(rows.write_from[k])), end)
        if self._reads_bad(ran, ring_from) or (read[:kept] == _BAD).any():
            ran.finite = False
        ring = [*ran.before]
        if ran.finite:
            seen = int((read[:start] * WEIGHTS[:start]).sum())
            positions = Positions(
                spec,
                start=start,
                base=ran.base,
                records=seen,
                first=ran.first,
                second=ran.second,
                ring=ring,
                ring_from=ring_from,
            )
            there = [*read[start:kept].tolist(), *([None] * (end - kept))]
            records = [positions.advance(t, old) for t, old in zip(ids, there, strict=True)]
        else:
            records = [BAD] * ran.count
            ran.first += records
            ran.second += records
            for position in range(max(start, end - RING), end):
                if ring:
                    ring[position % RING] = BAD
        ran.records, ran.kept = records, kept
        at = np.arange(kept, end)
        values = np.array(records[kept - start :], np.uint64)
        self.memory.records[pages[at // spec.page_size], at % spec.page_size] = values
        self._write_state(ran, ring)

    def _reads_bad(self, ran: Ran, ring_from: int) -> bool:
        """Whether a window or a state that a row reads holds what is not finite."""
        near = max(0, ran.start - max(self.spec.window - 1, 0) - ran.base)
        if BAD in ran.first[near:] or BAD in ran.second[near:]:
            return True
        positions = range(max(ring_from, ran.start - (RING - 1)), ran.start)
        return bool(ran.before) and any(ran.before[q % RING] == BAD for q in positions)

    def _write_state(self, ran: Ran, ring: list[int]) -> None:
        spec, memory, end = self.spec, self.memory, ran.start + ran.count
        if spec.window:
            low = max(ran.start, end - spec.window_pages * spec.swa_page_size)
            slots = memory.window_slots(self._tables.window[ran.line], low, end)
            memory.first[slots] = np.array(ran.first[low - ran.base :], np.uint64)
            memory.second[slots] = np.array(ran.second[low - ran.base :], np.uint64)
        if spec.has_state:
            memory.ring[self._tables.state[ran.line]] = np.array(ring, np.uint64)

    def _save(self, saves: Saves, rans: list[Ran]) -> None:
        """Leave windows and states as they are before positions inside of rows."""
        rows, at = unpacked(saves.row, INT32).tolist(), unpacked(saves.position, INT64).tolist()
        states = unpacked(saves.state, INT32).tolist()
        windows = unpacked(saves.window, INT32).reshape(len(rows), self.spec.window_pages)
        spec, memory = self.spec, self.memory
        for k, (row, position) in enumerate(zip(rows, at, strict=True)):
            ran = rans[row]
            for p in range(max(ran.base, position - spec.window), position):
                slot, offset = p // spec.swa_page_size % spec.window_pages, p % spec.swa_page_size
                target, source = windows[k, slot], self._tables.window[ran.line, slot]
                if p >= ran.start or target != source:
                    memory.first[target, offset] = ran.first[p - ran.base]
                    memory.second[target, offset] = ran.second[p - ran.base]
            if spec.has_state:
                ring = [*ran.before]
                for p in range(max(ran.start, position - RING), position):
                    ring[p % RING] = ran.first[p - ran.base]
                memory.ring[states[k]] = np.array(ring, np.uint64)

    # --- results

    def _sampled(self, plan: StepPlan, rans: list[Ran]) -> StepResult:
        """Choose the tokens of all entries."""
        if plan.sampling is None:
            raise Misuse("a step without grammars is sampled at once")
        rows, lines = (column.tolist() for column in sampled_entries(plan))
        tokens: list[int] = []
        failures: list[Failure] = []
        logprobs: list[EntryLogprobs] = []
        for k, (row, line) in enumerate(zip(rows, lines, strict=True)):
            ran = rans[row]
            sampling, stops = self._sampling[line]
            token = self._choose(ran, sampling, stops)
            self._last[line] = token
            if not ran.finite:
                failures.append(Failure(k, NOT_FINITE_REASON))
                continue
            tokens.append(token)
            if sampling.top_logprobs >= 0:
                value = logprob_of(ran.records[-1], token)
                told = PackedLogprobs(0, packed([token], INT32), packed([value], FLOAT32))
                logprobs.append(EntryLogprobs(k, told))
        failed = {failure.entry for failure in failures}
        return StepResult(
            plan.step,
            finite=packed([ran.finite for ran in rans], UINT8),
            accepted=packed([k not in failed for k in range(len(rows))], INT32),
            tokens=packed(tokens, INT32),
            failures=failures,
            logprobs=logprobs,
            spans=[_span(rans[span.row], span) for span in plan.spans],
        )

    def _choose(self, ran: Ran, sampling: LineSampling, stops: frozenset[int]) -> int:
        made = ran.start + ran.count - sampling.prompt_tokens
        barred = stops if made < sampling.min_new_tokens else frozenset[int]()
        seed = sampling.seed if sampling.temperature > 0 else None
        return choose(ran.records[-1], seed=seed, barred=barred)


def _span(ran: Ran, span: PromptSpan) -> PackedLogprobs:
    targets = unpacked(span.targets, INT32)
    first = span.start - ran.start
    records = ran.records[first : first + len(targets)]
    values = [logprob_of(r, t) for r, t in zip(records, targets.tolist(), strict=True)]
    return PackedLogprobs(0, packed(targets, INT32), packed(values, FLOAT32))


def logprob_of(record: int, token: int) -> float:
    """Return the made-up log-probability of a token behind a record."""
    return -float((record ^ token) % 97)
