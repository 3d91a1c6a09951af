"""Host time of the scheduler with the forward pass replaced by a no-op.

    python -m tests.bench.bench_host [--running 64] [--steps 1000] [--prompt 32768]

Prints the scheduler thread's CPU time per decode step (receive, plan, settle, reply and its
encoding; p50, p90, p99), settled in its turn and overlapped, where a row ends and another joins
every so often as well, per plan of a decode step, chosen, built and encoded, and per admission of
a long prompt, cold and as a second turn. Floors: 1.5 ms per decode step at 64 running requests,
0.2 ms of which for its plan, 2 ms per admission of 32k tokens.
"""

import argparse
import statistics
import time

import msgspec
import numpy as np

from mem_cache.request_table import RequestTable
from mem_cache.spec import PoolSizes, TreeSpec, div_ceil
from mem_cache.units import Units
from runtime.messages import FromScheduler, Generate, Sampling, ToScheduler, pack_ids
from runtime.scheduler.loop import Scheduler, solo_scheduler
from runtime.scheduler.residency import Residency
from runtime.scheduler.settings import SchedulerSettings
from runtime.scheduler.step import Step
from runtime.wire.arrays import INT32, UINT8, packed
from runtime.wire.step import KeptResult, Sample, SampleKept, StepPlan, StepResult

STEP_FLOOR_MS = 1.5
PLAN_FLOOR_MS = 0.2
ADMISSION_FLOOR_MS = 2.0


class _Done:
    forwarded = halfway = True

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def sample(self, command: Sample) -> None:
        pass

    def result(self) -> StepResult:
        return self._result


class NoOpRunner:
    """Answers each step with token 7 for every entry."""

    def launch(self, plan: StepPlan) -> _Done:
        """Compute nothing."""
        rows, entries = len(plan.rows.line) // INT32.itemsize, len(plan.sampled) // 8
        ones = packed(np.ones(entries), INT32)
        finite = packed(np.ones(rows), UINT8)
        return _Done(StepResult(plan.step, finite, accepted=ones, tokens=_sevens(entries)))

    def sample_kept(self, command: SampleKept) -> KeptResult:
        """Say token 7 for each line."""
        count = len(command.lines) // INT32.itemsize
        return KeptResult(command.call, packed(np.ones(count), INT32), _sevens(count))


def _sevens(count: int) -> bytes:
    return packed(np.full(count, 7), INT32)


class EncodingSocket:
    """Decodes what comes in and encodes what goes out, as the real sockets do."""

    def __init__(self) -> None:
        self.inbox: list[bytes] = []
        self.sent_bytes = 0
        self._decoder = msgspec.msgpack.Decoder(ToScheduler)
        self._encoder = msgspec.msgpack.Encoder()

    def receive(self, timeout_s: float) -> list[ToScheduler]:
        """Return all messages put into `inbox`."""
        messages, self.inbox = self.inbox, []
        return [self._decoder.decode(m) for m in messages]

    def send(self, message: FromScheduler) -> None:
        """Encode and count."""
        self.sent_bytes += len(self._encoder.encode(message))


def make_scheduler(
    rows: int, context: int, socket: EncodingSocket, *, overlap: bool = False
) -> Scheduler:
    """Return a scheduler at V4's page sizes with room for every request of the benchmark."""
    spec = TreeSpec()
    sizes = PoolSizes(
        full_pages=(rows + 8) * div_ceil(context, spec.page_size),
        swa_pages=12 * rows + 64,
        states=4 * rows + 64,
    )
    residency = Residency(
        spec,
        units=Units(sizes),
        table=RequestTable(spec, rows=rows, max_pages=div_ceil(context, spec.page_size)),
    )
    settings = SchedulerSettings(
        context_tokens=context,
        eos_token_ids=(1,),
        chunked_prefill_size=-1,
        idle_poll_s=0.0,
        overlap=overlap,
    )
    return solo_scheduler(
        settings, residency, runner=NoOpRunner(), socket=socket, clock=time.monotonic
    )


def generate(request_id: int, prompt: np.ndarray, new: int) -> bytes:
    """Return the encoded request."""
    sampling = Sampling(max_new_tokens=new, seed=request_id)
    return msgspec.msgpack.encode(Generate(request_id, pack_ids(prompt), sampling))


def turn_ms(scheduler: Scheduler) -> float:
    """Do one turn and return its thread CPU time in ms."""
    started = time.thread_time_ns()
    scheduler.turn()
    return (time.thread_time_ns() - started) / 1e6


def decode_steps(running: int, steps: int, *, overlap: bool) -> list[float]:
    """Return the CPU time of each decode step, in ms."""
    scheduler = decoding_scheduler(running, steps, overlap=overlap)
    return [turn_ms(scheduler) for _ in range(steps)]


def decoding_scheduler(running: int, steps: int, *, overlap: bool) -> Scheduler:
    """Return a scheduler whose requests all decode, and will for so many steps."""
    rng = np.random.default_rng(1)
    socket = EncodingSocket()
    scheduler = make_scheduler(running, 2048 + steps, socket, overlap=overlap)
    for i in range(running):
        socket.inbox.append(generate(i, rng.integers(8, 500, 1000), steps + 500))
    while len(scheduler.replicas[0].sets.decoding) < running:
        scheduler.turn()
    return scheduler


def plans(running: int, steps: int) -> list[float]:
    """Return the CPU time in which each plan is chosen, built and encoded, in ms."""
    scheduler, encoder = decoding_scheduler(running, steps, overlap=True), msgspec.msgpack.Encoder()
    planning, times = scheduler.replicas[0]._planning, list[float]()
    choose = planning.next_step

    def timed(number: int) -> Step | None:
        started = time.thread_time_ns()
        step = choose(number)
        assert step is not None
        encoder.encode(step.plan)
        times.append((time.thread_time_ns() - started) / 1e6)
        return step

    planning.next_step = timed
    for _ in range(steps):
        scheduler.turn()
    return times


def busy_turns(running: int, steps: int) -> list[float]:
    """Return the CPU time of each turn with overlap while short answers come and go, in ms."""
    rng = np.random.default_rng(3)
    socket = EncodingSocket()
    scheduler = make_scheduler(running, 2048, socket, overlap=True)
    times: list[float] = []
    for i in range(running + steps):
        socket.inbox.append(generate(i, rng.integers(8, 500, 1000), running // 2))
        elapsed = turn_ms(scheduler)
        if i >= running:
            times.append(elapsed)
    return times


def admissions(prompt_tokens: int, count: int, *, second_turn: bool) -> list[float]:
    """Return the CPU time of turns that take in, admit and prefill one long prompt, in ms."""
    rng = np.random.default_rng(2)
    socket = EncodingSocket()
    scheduler = make_scheduler(count + 1, prompt_tokens + 1024, socket)
    times: list[float] = []
    for i in range(count):
        prompt = rng.integers(8, 500, prompt_tokens)
        if second_turn:
            socket.inbox.append(generate(2 * i, prompt[:-200], 1))
            scheduler.turn()
        socket.inbox.append(generate(2 * i + 1, prompt, 1))
        times.append(turn_ms(scheduler))
    return times


def report(name: str, times: list[float], floor_ms: float) -> None:
    """Print one row."""
    p50, p90, p99 = (float(np.percentile(times, q)) for q in (50, 90, 99))
    verdict = "ok" if p50 <= floor_ms else "ABOVE"
    print(
        f"{name:<34} p50 {p50:7.3f}  p90 {p90:7.3f}  p99 {p99:7.3f}  "
        f"mean {statistics.fmean(times):7.3f} ms   floor {floor_ms} ms  {verdict}"
    )


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--running", type=int, default=64)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--prompt", type=int, default=32768)
    args = parser.parse_args()
    for overlap in (False, True):
        name = f"decode step, {args.running} running{', overlap' if overlap else ''}"
        times = decode_steps(args.running, args.steps, overlap=overlap)
        report(name, times, STEP_FLOOR_MS)
    name = f"plan of {args.running} rows, encoded"
    report(name, plans(args.running, args.steps), PLAN_FLOOR_MS)
    times = busy_turns(args.running, args.steps)
    report("turn, one joins and one leaves", times, STEP_FLOOR_MS)
    for second_turn in (False, True):
        name = f"admit {args.prompt} tokens, {'second turn' if second_turn else 'cold'}"
        times = admissions(args.prompt, 40, second_turn=second_turn)
        report(name, times, ADMISSION_FLOOR_MS)


if __name__ == "__main__":
    main()
