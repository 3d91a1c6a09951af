"""Free requests beside requests that follow a grammar: what each get of a step.

    python -m tests.bench.bench_grammar [--free 8] [--ruled 8] [--grammars 4] [--forward-ms 10]
                                        [--disable-overlap]

The scheduler and the grammars' processes are the real ones; the forward pass is a wait during
which the host is free, as it is beside a device. Prints, with and without the ruled requests, the
tokens per second of a free row and of a ruled one, and how long masks took.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mem_cache.request_table import RequestTable
from mem_cache.spec import PoolSizes, TreeSpec
from mem_cache.units import Units
from runtime.executor.plan_rows import PlanRows, sampled_entries
from runtime.grammar.nursery import NurserySettings
from runtime.grammar.output import GrammarOutput
from runtime.grammar.pool import GrammarPool, PoolSettings
from runtime.messages import Generate, Grammar, Sampling, pack_ids
from runtime.scheduler.loop import Scheduler, solo_scheduler
from runtime.scheduler.residency import Residency
from runtime.scheduler.settings import SchedulerSettings
from runtime.wire.arrays import INT32, UINT8, packed, unpacked
from runtime.wire.step import (
    KeptResult,
    LineSampling,
    Mask,
    Sample,
    SampleKept,
    StepPlan,
    StepResult,
)
from tests.bench.bench_host import EncodingSocket

CONTEXT_TOKENS = 8192
FREE = 1000
LETTERS = "abcdefghijklmnopqrstuvwxyz" * 3 + 'ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789,.:;"{}[]()-_'


class DeviceRunner:
    """Takes so long for a forward pass, one after the other, and picks a token that is allowed."""

    def __init__(self, forward_s: float, eos_id: int) -> None:
        self._forward_s = forward_s
        self._eos_id = eos_id
        self._free_s = 0.0
        self._lines: dict[int, LineSampling] = {}
        self._masks: dict[int, np.ndarray] = {}
        self._kept: dict[int, int] = {}

    def launch(self, plan: StepPlan) -> "DeviceStep":
        """Start a pass when the one before it is over."""
        for line in unpacked(plan.changes.left, INT32).tolist():
            for known in (self._lines, self._masks, self._kept):
                known.pop(line, None)
        self._lines.update((join.line, join.sampling) for join in plan.joins)
        self._free_s = max(self._free_s, time.monotonic()) + self._forward_s
        step = DeviceStep(self, plan, self._free_s)
        if plan.sampling is not None:
            step.sample(plan.sampling)
        return step

    def take_masks(self, masks: list[Mask]) -> None:
        """Take in what lines may say next."""
        self._masks.update((mask.line, unpacked(mask.words, INT32)) for mask in masks)

    def keep(self, line: int, position: int) -> None:
        """Note a line that is sampled later."""
        self._kept[line] = position

    def sample_kept(self, command: SampleKept) -> KeptResult:
        """Pick a token for each line."""
        self.take_masks(command.masks)
        lines = unpacked(command.lines, INT32).tolist()
        tokens = [self.pick(line, self._kept.pop(line)) for line in lines]
        return KeptResult(command.call, packed(np.ones(len(lines)), INT32), packed(tokens, INT32))

    def pick(self, line: int, position: int) -> int:
        """Return a token that the line may say."""
        sampling = self._lines[line]
        if not sampling.constrained:
            return 7
        allowed = self._masks[line]
        words = np.flatnonzero(allowed)
        turn = position * 7919 + sampling.seed * 104729
        word = int(words[turn % len(words)])
        bits = int(allowed[word]) & 0xFFFFFFFF
        choices = [32 * word + b for b in range(32) if bits >> b & 1]
        choices = [token for token in choices if token != self._eos_id] or [self._eos_id]
        return choices[position % len(choices)]


class DeviceStep:
    """A pass under way."""

    halfway = True

    def __init__(self, runner: DeviceRunner, plan: StepPlan, end_s: float) -> None:
        self._runner = runner
        self._plan = plan
        self._end_s = end_s
        self._told: StepResult | None = None

    @property
    def forwarded(self) -> bool:
        """Whether its time is over."""
        return time.monotonic() >= self._end_s

    def sample(self, command: Sample) -> None:
        """Pick tokens, but for the lines that are kept."""
        self._runner.take_masks(command.masks)
        row, line = sampled_entries(self._plan)
        ends = PlanRows.of(self._plan.rows).end
        kept = np.isin(line, unpacked(command.keep, INT32))
        tokens: list[int] = []
        entries = zip(line.tolist(), ends[row].tolist(), kept.tolist(), strict=True)
        for one, position, is_kept in entries:
            if is_kept:
                self._runner.keep(one, position)
            else:
                tokens.append(self._runner.pick(one, position))
        finite = packed(np.ones(len(ends)), UINT8)
        self._told = StepResult(
            self._plan.step, finite, accepted=packed(~kept, INT32), tokens=packed(tokens, INT32)
        )

    def result(self) -> StepResult:
        """Wait for the end of the pass."""
        time.sleep(max(0.0, self._end_s - time.monotonic()))
        assert self._told is not None
        return self._told


class TimedPool(GrammarPool):
    """Notes how long each mask takes, from the token to the poll that brings it."""

    def __init__(self, settings: PoolSettings) -> None:
        super().__init__(settings)
        self.seconds: list[float] = []
        self._asked: dict[GrammarOutput, float] = {}

    def open(self, request_id: int, grammar: Grammar) -> GrammarOutput:
        """Return an output whose clock is watched."""
        output = super().open(request_id, grammar)
        accept = output.accept

        def timed(token: int) -> None:
            self._asked[output] = time.monotonic()
            accept(token)

        output.accept = timed
        return output

    def poll(self, timeout_s: float = 0.0) -> list[GrammarOutput]:
        """Take in masks, and note which have come."""
        failed = super().poll(timeout_s)
        now = time.monotonic()
        for output in [o for o in self._asked if o.allowed is not None]:
            self.seconds.append(now - self._asked.pop(output))
        return failed


def write_vocabulary(folder: Path, size: int) -> int:
    """Write a byte-level tokenizer of `size` made-up tokens; return its end token."""
    rng = np.random.default_rng(0)
    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    while len(vocab) < size - 1:
        word = "".join(rng.choice(list(LETTERS), int(rng.integers(2, 9))))
        vocab.setdefault("Ġ" + word if rng.random() < 0.5 else word, len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return size - 1


def schema(number: int) -> Grammar:
    """Return a grammar of its own for each number: a list of nested objects without an end."""
    item = {
        "type": "object",
        "properties": {
            f"key{number}": {"type": "string"},
            "kind": {"enum": ["x", "yy", "zzz"]},
            "counts": {"type": "array", "items": {"type": "integer"}},
        },
        "required": [f"key{number}", "kind", "counts"],
        "additionalProperties": False,
    }
    return Grammar("json_schema", json.dumps({"type": "array", "minItems": 1, "items": item}))


@contextmanager
def timed_pool(vocab: int) -> Iterator[tuple[TimedPool, int]]:
    """Yield a pool over a vocabulary, and its end token."""
    with tempfile.TemporaryDirectory() as folder:
        eos_id = write_vocabulary(Path(folder), vocab)
        nursery = NurserySettings(folder, vocab, [eos_id])
        pool = TimedPool(PoolSettings(nursery, limit_s=60.0, memory_bytes=1 << 30))
        try:
            yield pool, eos_id
        finally:
            pool.shut_down()


def make_scheduler(
    rows: int,
    runner: DeviceRunner,
    socket: EncodingSocket,
    *,
    pool: GrammarPool,
    eos_id: int,
    overlap: bool,
) -> Scheduler:
    """Return a scheduler with room for every row."""
    spec = TreeSpec()
    pages = CONTEXT_TOKENS // spec.page_size
    sizes = PoolSizes(full_pages=rows * pages, swa_pages=12 * rows + 64, states=4 * rows + 64)
    residency = Residency(
        spec,
        units=Units(sizes),
        table=RequestTable(spec, rows=rows, max_pages=pages),
    )
    settings = SchedulerSettings(
        context_tokens=CONTEXT_TOKENS, eos_token_ids=(eos_id,), idle_poll_s=0.0, overlap=overlap
    )
    return solo_scheduler(
        settings, residency, runner=runner, socket=socket, clock=time.monotonic, grammars=pool
    )


def send(socket: EncodingSocket, request_id: int, grammar: Grammar | None) -> None:
    """Queue a request that goes on for as long as there is room."""
    sampling = Sampling(
        CONTEXT_TOKENS - 100, seed=request_id, grammar=grammar, ignore_eos=grammar is None
    )
    prompt = pack_ids([1, 2, 3, request_id])
    socket.inbox.append(msgspec.msgpack.encode(Generate(request_id, prompt, sampling)))


def measure(scheduler: Scheduler, seconds: float) -> tuple[float, float]:
    """Return the tokens per second of all free and of all ruled rows."""
    # Held on to, so that one that happens to end counts as well.
    requests = list(scheduler.replicas[0].sets.decoding.requests)

    def counts() -> np.ndarray:
        ruled = sum(r.output_tokens for r in requests if r.id < FREE)
        return np.array([sum(r.output_tokens for r in requests if r.id >= FREE), ruled])

    for _ in range(20):
        scheduler.turn()
    before, started = counts(), time.monotonic()
    while time.monotonic() - started < seconds:
        scheduler.turn()
    free, ruled = (counts() - before) / (time.monotonic() - started)
    return float(free), float(ruled)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--free", type=int, default=8)
    parser.add_argument("--ruled", type=int, default=8)
    parser.add_argument("--grammars", type=int, default=4, help="different ones")
    parser.add_argument("--forward-ms", type=float, default=10.0)
    parser.add_argument("--vocab", type=int, default=129280)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--disable-overlap", action="store_true", help="settle step by step")
    args = parser.parse_args()
    with timed_pool(args.vocab) as (pool, eos_id):
        for ruled in (0, args.ruled):
            runner, socket = DeviceRunner(args.forward_ms / 1e3, eos_id), EncodingSocket()
            rows = args.free + ruled
            overlap = not args.disable_overlap
            scheduler = make_scheduler(
                rows, runner, socket, pool=pool, eos_id=eos_id, overlap=overlap
            )
            for k in range(ruled):
                send(socket, k, schema(k % args.grammars))
            for k in range(args.free):
                send(socket, FREE + k, None)
            sets = scheduler.replicas[0].sets
            while socket.inbox or len(sets.waiting) or sets.prefills:
                scheduler.turn()
            pool.seconds.clear()
            free, told = measure(scheduler, args.seconds)
            print(
                f"{args.free} free and {ruled} ruled rows, {args.forward_ms:g} ms a pass: "
                f"{free / max(1, args.free):6.1f} token/s a free row, "
                f"{told / max(1, ruled):6.1f} a ruled one"
            )
        p50, p90, p99 = (1e3 * float(np.percentile(pool.seconds, q)) for q in (50, 90, 99))
        print(f"a mask: p50 {p50:.2f}  p90 {p90:.2f}  p99 {p99:.2f} ms")


if __name__ == "__main__":
    main()
