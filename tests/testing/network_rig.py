"""A whole scheduler on a real network in this process, every row of it watched by a byte ledger."""

import itertools
from pathlib import Path

from layers.models.deepseek_v4.pools import KvPools
from runtime.command_line import parse_args
from runtime.config import ServerConfig
from runtime.executor.model_runner import CpuModelRunner
from runtime.executor.step_profiler import StepProfiler
from runtime.messages import Abort, Generate, Outputs, Sampling, pack_ids
from runtime.scheduler.process import build_scheduler
from tests.testing.byte_ledger import ByteLedger
from tests.testing.scheduler_rig import MemorySocket


class NetworkRig:
    """What `launch_server.py` with these flags makes of a checkpoint, without its processes.

    ledger  after every turn each running row is held against it
    check   have the scheduler check its own books in every step, too
    """

    def __init__(self, ledger: ByteLedger, *flags: str, check: bool = True) -> None:
        checks = ["--check-every-step"] * check
        self.config: ServerConfig = parse_args([*flags, "--device", "cpu", *checks])
        assert self.config.model_path is not None
        self.socket = MemorySocket()
        self.now_s = 0.0
        self.scheduler, _ = build_scheduler(
            self.config, Path(self.config.model_path), self.socket, clock=self._tick
        )
        [self.replica] = self.scheduler.replicas
        self._ledger = ledger
        self._ids = itertools.count(1)

    def _tick(self) -> float:
        self.now_s += 1e-4
        return self.now_s

    @property
    def runner(self) -> CpuModelRunner:
        """What runs the steps."""
        [profiler] = self.scheduler._executor.replicas
        assert isinstance(profiler, StepProfiler)
        runner = profiler.runner
        assert isinstance(runner, CpuModelRunner)
        return runner

    @property
    def pools(self) -> KvPools:
        """The device tensors."""
        pools = self.runner._pools
        assert isinstance(pools, KvPools)
        return pools

    @property
    def counters(self) -> dict[str, float]:
        """What the scheduler counted, as /metrics exports it."""
        return self.scheduler.state().counters

    def send(
        self,
        prompt: list[int],
        new: int = 1,
        *,
        namespace: str = "",
        seed: int = 0,
        temperature: float = 0.0,
        priority: int = 0,
    ) -> int:
        """Queue a request and return its id."""
        request_id = next(self._ids)
        sampling = Sampling(new, seed=seed, temperature=temperature, ignore_eos=True)
        self.socket.inbox.append(
            Generate(
                request_id,
                pack_ids(prompt),
                sampling,
                namespace=namespace,
                priority=priority,
                stream=False,
            )
        )
        return request_id

    def abort(self, request_id: int) -> None:
        """Queue an abort."""
        self.socket.inbox.append(Abort([request_id]))

    @property
    def busy(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self.socket.inbox or self.replica.sets.by_id)

    def turn(self) -> None:
        """Turn the loop once, and look at every row."""
        self.scheduler.turn()
        for request in self.replica.sets.running:
            self._ledger.look(self.pools, self.replica.residency, request)

    def run(self) -> None:
        """Turn until nothing is left to do."""
        while self.busy:
            self.turn()

    def ask(self, prompt: list[int], new: int = 1, *, namespace: str = "") -> list[int]:
        """Return the greedy tokens after a prompt."""
        request_id = self.send(prompt, new, namespace=namespace)
        self.run()
        return self.tokens(request_id)

    def tokens(self, request_id: int) -> list[int]:
        """Return the tokens of a request that has ended."""
        return [
            token
            for message in self.socket.outbox
            if isinstance(message, Outputs)
            for item in message.items
            if item.request_id == request_id
            for token in item.token_ids
        ]

    def cached(self, request_id: int) -> int:
        """Return the reported cached tokens of a request that has ended."""
        return max(
            item.cached_tokens
            for message in self.socket.outbox
            if isinstance(message, Outputs)
            for item in message.items
            if item.request_id == request_id
        )
