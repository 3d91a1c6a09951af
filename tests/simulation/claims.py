"""What the scheduler says of requests, held against what has been seen."""

from collections import Counter

from runtime.messages import Output, unpack_ids
from runtime.scheduler.request import Status
from tests.simulation.audit import demand
from tests.simulation.client import SHARES
from tests.simulation.engine import Engine
from tests.simulation.pipes import Violation


class Claims:
    """Checks cached tokens, deadlines and fair shares of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._backlogged: dict[tuple[str, str], float] = {}
        self._tree_was = 0

    def check(self) -> None:
        """Check the cached tokens of whoever has news for the first time."""
        ledger = self._engine.pipes.ledger
        for item in ledger.first:
            self._check_cached(item)
        ledger.first.clear()

    def _check_cached(self, item: Output) -> None:
        """Cached is what was not computed; and it was computed before, in the same namespace."""
        engine, told = self._engine, item.cached_tokens
        message = engine.pipes.ledger.sent[item.request_id]
        start = engine.starts.get(item.request_id)
        allowed = {0} if item.request_id in engine.hurt or not engine.world.reuse else set[int]()
        length = len(message.input_ids) // 4
        if start is not None:
            allowed.add(start)
        if engine.world.reuse:
            allowed.add(length if item.token_ids else 0)  # another request had the same prompt
        else:
            demand(told == 0, f"{told} cached tokens without a cache")
        if not item.token_ids and item.finish in ("abort", "error"):
            allowed.add(0)
        if told not in allowed:
            raise Violation(f"request {item.request_id} says {told} cached tokens, not {allowed}")
        if told and item.finish != "error":  # else it may have read what was not finite
            prompt = unpack_ids(message.input_ids).tolist()
            record = engine.expected.records(prompt)[told - 1]
            namespace = engine.calls[item.request_id].namespace
            if record not in engine.known.get(namespace, set()):
                raise Violation(
                    f"request {item.request_id} has {told} cached tokens that nobody computed "
                    f"in namespace {namespace!r}"
                )

    def check_ages(self, now_s: float, slack_s: float) -> None:
        """Demand that nobody waits or runs for longer than it may; and that shares are fair."""
        world, left_s = self._engine.world, self._engine.left_s
        for request in self._engine.requests:
            gone = request.id in left_s and now_s - left_s[request.id] > slack_s
            demand(not gone, f"request {request.id} runs for a client that has gone")
            age_s = now_s - request.arrival_s - slack_s
            server_s = None if request.background else world.request_timeout_s
            limits = [s for s in (server_s, request.timeout_s) if s is not None]
            late = bool(limits) and age_s > min(limits)
            demand(not late, f"request {request.id} is {age_s:.2f} s over its time")
            waits = request.status is Status.WAITING and not request.background
            if world.queue_timeout_s is not None and waits and request.cached_tokens is None:
                # It may have had a row, for a chunk that never came.
                since = now_s - request.times._since_s > slack_s
                over = since and age_s > world.queue_timeout_s and not request.output_tokens
                demand(not over, f"request {request.id} waits for too long")
        if not world.aging_s and world.replicas == 1:
            self._check_shares()

    def _check_shares(self) -> None:
        """Of two shares that wait all the time, none gets more than a batch ahead."""
        engine = self._engine
        waiting = Counter(
            r.share.name
            for r in engine.requests
            if r.status is Status.WAITING and r.priority == 0 and not r.background
        )
        weights = {share.name: share.weight for share in SHARES if share.max_running is None}
        names = sorted(name for name in waiting if name in weights)
        pairs = {(a, b) for a in names for b in names if a < b}
        others = any(r.priority for r in engine.requests)
        self._backlogged = {p: v for p, v in self._backlogged.items() if p in pairs and not others}
        bound = 4 * (engine.world.rows + 1) * engine.context
        for a, b in pairs if not others else ():
            ahead = engine.service[a] / weights[a] - engine.service[b] / weights[b]
            was = self._backlogged.setdefault((a, b), ahead)
            demand(abs(ahead - was) <= bound, f"{a} gets {ahead - was:.0f} tokens more than {b}")
