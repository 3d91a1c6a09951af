"""A scheduler on a token runner, simulated time and an in-memory socket."""

from collections.abc import Callable

import numpy as np

from mem_cache.request_table import RequestTable
from mem_cache.spec import PoolSizes, TreeSpec, div_ceil
from mem_cache.units import Units
from runtime.executor.interface import Executor, StepHandle
from runtime.messages import (
    Abort,
    FromScheduler,
    Generate,
    Grammar,
    Logprobs,
    Output,
    Outputs,
    Refused,
    Sampling,
    ToScheduler,
    pack_ids,
)
from runtime.scheduler.grammar_gate import Grammars
from runtime.scheduler.loop import solo_scheduler
from runtime.scheduler.request import Request
from runtime.scheduler.residency import Residency
from runtime.scheduler.resume_policy import ResumePolicy
from runtime.scheduler.settings import SchedulerSettings
from runtime.share import Share
from runtime.wire.step import KeptResult, SampleKept, StepPlan
from tests.testing.plan_arrays import PlanArrays, PlanReader
from tests.testing.token_runner import TokenRunner

SMALL = TreeSpec(page_size=8, swa_page_size=4, window=8)
# Whether rigs overlap unless told; tests that take the fixture `either_way` run with both.
OVERLAP = False
NOBODY = Share()


class MemorySocket:
    """Both directions as lists."""

    def __init__(self) -> None:
        self.inbox: list[ToScheduler] = []
        self.outbox: list[FromScheduler] = []

    def receive(self, timeout_s: float) -> list[ToScheduler]:
        """Return all messages put into `inbox`."""
        messages, self.inbox = self.inbox, []
        return messages

    def send(self, message: FromScheduler) -> None:
        """Append to `outbox`."""
        self.outbox.append(message)


class Recorder:
    """Keeps the plans of all steps on their way to a runner."""

    def __init__(self, runner: Executor, spec: TreeSpec) -> None:
        self.runner = runner
        self.plans: list[PlanArrays] = []
        self._reader = PlanReader(spec)

    def launch(self, plan: StepPlan) -> StepHandle:
        """Note the plan and have it run."""
        self.plans.append(self._reader.read(plan))
        return self.runner.launch(plan)

    def sample_kept(self, command: SampleKept) -> KeptResult:
        """Have lines sampled whose logits were kept."""
        return self.runner.sample_kept(command)


class Rig:
    """Everything of one scheduler, small enough to look at.

    runner   what runs the steps instead of a token runner
    overlap  whether a step is launched before the one before it is settled
    adjust   changes settings that have no argument here
    plans    of all steps so far
    """

    def __init__(
        self,
        sizes: PoolSizes,
        *,
        spec: TreeSpec = SMALL,
        rows: int = 4,
        reuse: bool = True,
        chunk: int = 16,
        policy: str = "lpm",
        context: int | None = None,
        max_queued: int = 1024,
        vocab: int = 50,
        logit_rows: int = 4096,
        eos: tuple[int, ...] = (),
        resume: ResumePolicy | None = None,
        replay: int | None = None,
        quota: int | None = None,
        runner: Executor | None = None,
        grammars: Grammars | None = None,
        overlap: bool | None = None,
        adjust: Callable[[SchedulerSettings], SchedulerSettings] = lambda settings: settings,
    ) -> None:
        context = min(context or 10**9, sizes.full_pages * spec.page_size)
        self.spec, self.sizes = spec, sizes
        self.now_s = 0.0
        self.make_residency = lambda: Residency(
            spec,
            units=Units(sizes),
            table=RequestTable(spec, rows=rows, max_pages=div_ceil(context, spec.page_size)),
            replay_tokens=replay,
            reuse=reuse,
            policy=resume,
            namespace_tokens=quota,
        )
        self.residency = self.make_residency()
        self.runner = TokenRunner(spec, sizes, vocab=vocab, replay_tokens=replay)
        recorder = Recorder(runner or self.runner, spec)
        self.plans = recorder.plans
        self.socket = MemorySocket()
        settings = SchedulerSettings(
            context_tokens=context,
            eos_token_ids=eos,
            chunked_prefill_size=chunk,
            schedule_policy="fcfs" if policy == "fcfs" else "lpm",
            check_every_step=True,
            max_queued_requests=max_queued,
            max_logit_rows=logit_rows,
            overlap=OVERLAP if overlap is None else overlap,
        )
        self.settings = adjust(settings)
        self.scheduler = solo_scheduler(
            self.settings,
            self.residency,
            runner=recorder,
            socket=self.socket,
            clock=self._tick,
            grammars=grammars,
        )
        [self.replica] = self.scheduler.replicas
        self._next_id = 0

    def _tick(self) -> float:
        self.now_s += 1e-4
        return self.now_s

    def send(
        self,
        prompt: list[int] | np.ndarray,
        new: int = 4,
        *,
        namespace: str = "",
        priority: int = 0,
        logprobs: Logprobs | None = None,
        stream: bool = True,
        stop: tuple[int, ...] = (),
        min_new: int = 0,
        grammar: Grammar | None = None,
        ignore_eos: bool = False,
        background: bool = False,
        boundaries: tuple[int, ...] = (),
        share: Share = NOBODY,
        timeout_s: float | None = None,
    ) -> int:
        """Queue a request and return its id."""
        self._next_id += 1
        sampling = Sampling(
            max_new_tokens=new,
            seed=0,
            temperature=0.0,
            stop_token_ids=stop,
            min_new_tokens=min_new,
            grammar=grammar,
            ignore_eos=ignore_eos,
        )
        self.socket.inbox.append(
            Generate(
                self._next_id,
                pack_ids(prompt),
                sampling,
                logprobs=logprobs,
                namespace=namespace,
                priority=priority,
                stream=stream,
                background=background,
                boundaries=boundaries,
                share=share,
                timeout_s=timeout_s,
            )
        )
        return self._next_id

    def abort(self, *request_ids: int) -> None:
        """Queue an abort."""
        self.socket.inbox.append(Abort(list(request_ids)))

    def request(self, request_id: int) -> Request:
        """Return a request that waits or runs."""
        return self.replica.sets.by_id[request_id]

    def at_rest(self, request_id: int) -> Request:
        """Return a request that runs and may be ended: no chunk of it is in flight."""
        request = self.replica._at_rest(request_id)
        assert request is not None
        return request

    def turn_until(self, condition: Callable[[], bool], turns: int = 1000) -> None:
        """Turn the loop, once at least, until something is so."""
        for _ in range(turns):
            self.scheduler.turn()
            if condition():
                return
        raise AssertionError(f"not so after {turns} turns")

    def run(self, turns: int = 10_000) -> None:
        """Turn the loop until nothing is left to do."""
        for _ in range(turns):
            self.scheduler.turn()
            if not self.busy:
                return
        raise AssertionError(f"still busy after {turns} turns")

    @property
    def busy(self) -> bool:
        """Whether any request waits or runs."""
        sets = self.replica.sets
        waiting = self.socket.inbox or len(sets.waiting) or sets.suspended
        return bool(waiting or sets.prefills or len(sets.decoding))

    def outputs(self, request_id: int) -> list[Output]:
        """Return all news of a request so far."""
        return [
            item
            for message in self.socket.outbox
            if isinstance(message, Outputs)
            for item in message.items
            if item.request_id == request_id
        ]

    def tokens(self, request_id: int) -> list[int]:
        """Return the tokens a request has produced so far."""
        return [t for item in self.outputs(request_id) for t in item.token_ids]

    def cached(self, request_id: int) -> int:
        """Return the reported cached tokens of a request."""
        return self.outputs(request_id)[0].cached_tokens

    def refusals(self) -> list[Refused]:
        """Return the refusals sent so far."""
        return [m for m in self.socket.outbox if isinstance(m, Refused)]

    def assert_conserved(self) -> None:
        """Assert that an idle scheduler's units are all free or in the tree."""
        assert not self.busy
        self.assert_all_there(self.residency)

    def assert_all_there(self, residency: Residency) -> None:
        """Assert that units that nobody runs in are all free or in the tree, and empty the tree."""
        assert residency.rows_used == 0
        assert residency.points.swa_held == residency.points.states_held == 0
        assert residency._lent_points == 0
        assert residency.table.free == residency.table.page_table.shape[0]
        assert residency.full.free + residency.cache.tree_pages == residency.full.capacity
        residency.cache.reset()
        for pool in (residency.full, residency.swa):
            assert pool.free == pool.capacity, pool.name
        assert residency.states.free == self.sizes.kept_states
