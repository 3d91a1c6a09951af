"""Random requests against a dictionary of prefixes; everything is checked after every step.

The alphabets are small and the pages short, so that sequences share prefixes, part inside pages,
and meet again; the pools are small, so that eviction is never far.
"""

from typing import ClassVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mem_cache.spec import TreeSpec
from tests.testing.dictionary_model import Rig, Row

NAMESPACES = st.sampled_from(("", "", "", "other"))
SHARES = st.integers(0, 8)


class CacheMachine(RuleBasedStateMachine):
    """Rows start, grow, publish, and go; the tree must agree with the dictionary throughout."""

    spec: ClassVar[TreeSpec]
    pools: ClassVar[tuple[int, int, int]]
    longest: ClassVar[int]

    def __init__(self) -> None:
        super().__init__()
        full, swa, rings = self.pools
        self.rig = Rig(self.spec, full=full, swa=swa, rings=rings)
        self.history: list[list[int]] = [[]]

    def _tokens(self, data: st.DataObject) -> list[int]:
        """Draw a part of something seen before, and some runs of tokens behind it."""
        old = data.draw(st.sampled_from(self.history))
        kept = len(old) * data.draw(SHARES) // 8
        return [*old[:kept], *self._runs(data, least=0)]

    def _runs(self, data: st.DataObject, *, least: int) -> list[int]:
        run = st.tuples(st.integers(0, 1), st.integers(1, self.longest))
        runs = data.draw(st.lists(run, min_size=least, max_size=3))
        return [token for token, length in runs for _ in range(length)]

    def _row(self, data: st.DataObject) -> Row:
        return self.rig.rows[data.draw(st.integers(0, len(self.rig.rows) - 1))]

    @rule(data=st.data(), namespace=NAMESPACES)
    def look(self, data: st.DataObject, namespace: str) -> None:
        """Match without taking anything."""
        tokens = self._tokens(data)
        limit = len(tokens) * data.draw(SHARES) // 8
        self.rig.match(tokens, limit=limit, namespace=namespace)

    @precondition(lambda self: len(self.rig.rows) < 4)
    @rule(data=st.data(), namespace=NAMESPACES)
    def start(self, data: st.DataObject, namespace: str) -> None:
        """Start a request on something like an earlier sequence."""
        tokens = self._tokens(data)
        if self.rig.start(tokens, namespace=namespace) is not None:
            self.history.append(tokens)

    @rule(data=st.data(), namespace=NAMESPACES, shares=st.sets(SHARES, max_size=3))
    def turn(self, data: st.DataObject, namespace: str, shares: set[int]) -> None:
        """Run a whole request, with resume points here and there, and some tokens more."""
        row = self.rig.start(self._tokens(data), namespace=namespace)
        if row is None or not row.tokens:
            return
        self.rig.publish(row)
        for share in shares:
            self.rig.add_point(row, max(1, row.published * share // 8))
        self.history.append(list(row.tokens))
        if self.rig.compute(row, self._runs(data, least=0)):
            self.rig.publish(row)
            self.history.append(list(row.tokens))
            self.rig.finish(row)

    @precondition(lambda self: self.rig.rows)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        """Let a request grow."""
        row = self._row(data)
        if self.rig.compute(row, self._runs(data, least=1)):
            self.history.append(list(row.tokens))

    @precondition(lambda self: self.rig.rows)
    @rule(data=st.data(), use_lock=st.booleans())
    def publish(self, data: st.DataObject, use_lock: bool) -> None:
        """Insert what a request has; beginning at its lock makes no difference."""
        self.rig.publish(self._row(data), use_lock=use_lock)

    @precondition(lambda self: any(row.published for row in self.rig.rows))
    @rule(data=st.data(), share=SHARES)
    def add_point(self, data: st.DataObject, share: int) -> None:
        """Add a resume point somewhere in what a request has published."""
        rows = [row for row in self.rig.rows if row.published]
        row = rows[data.draw(st.integers(0, len(rows) - 1))]
        if not row.lock.node.is_root and row.lock.node.end >= row.published:
            self.rig.add_point(row, max(1, row.published * share // 8))

    @precondition(lambda self: self.rig.rows)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        """Let go of a resume point, perhaps for the second time."""
        self.rig.cache.unlock_point(self._row(data).lock)

    @precondition(lambda self: self.rig.rows)
    @rule(data=st.data(), publish=st.booleans())
    def finish(self, data: st.DataObject, publish: bool) -> None:
        """End a request, or abort it with what it has not published."""
        row = self._row(data)
        if publish:
            self.rig.publish(row)
        self.rig.finish(row)

    @rule(share=SHARES)
    def evict_full(self, share: int) -> None:
        """Ask for free pages."""
        self.rig.evict_full(self.rig.full.capacity * share // 8)

    @rule(swa=SHARES, rings=SHARES)
    def evict_swa(self, swa: int, rings: int) -> None:
        """Ask for free SWA pages and rings."""
        self.rig.evict_swa(
            swa_pages=self.rig.swa.capacity * swa // 8, rings=self.rig.rings.capacity * rings // 8
        )

    @precondition(lambda self: not self.rig.rows)
    @rule(really=st.sampled_from((False, False, False, True)))
    def reset(self, really: bool) -> None:
        """Forget everything, now and then."""
        if really:
            self.rig.reset()

    @invariant()
    def check(self) -> None:
        """Verify everything."""
        self.rig.check()

    def teardown(self) -> None:
        """End all requests; nothing may be left that nobody accounts for."""
        for row in list(self.rig.rows):
            self.rig.finish(row)
        self.rig.reset()
        self.rig.check()
        for pool in (self.rig.full, self.rig.swa, self.rig.rings):
            assert pool.free == pool.capacity


def _machine(
    spec: TreeSpec, pools: tuple[int, int, int], *, longest: int, examples: int
) -> type[CacheMachine]:
    fields = {"spec": spec, "pools": pools, "longest": longest}
    machine = type("CacheMachine", (CacheMachine,), fields)
    machine.TestCase.settings = settings(
        max_examples=examples,
        stateful_step_count=30,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
    )
    return machine


TestPagesOfOneToken = _machine(TreeSpec(1, 1, 1), (24, 6, 5), longest=3, examples=25).TestCase
TestWindowOfOnePage = _machine(TreeSpec(4, 2, 4), (14, 9, 5), longest=5, examples=70).TestCase
TestWindowOfManyPages = _machine(TreeSpec(4, 4, 128), (24, 40, 5), longest=9, examples=25).TestCase
TestPagesOfFlash = _machine(TreeSpec(256, 64, 128), (9, 12, 5), longest=200, examples=8).TestCase
