"""Random requests against a dictionary of prefixes; everything is checked after every step.

The alphabets are small and the pages short, so that sequences share prefixes, part inside pages,
and meet again; the pools are small, so that eviction is never far. Replay lengths are drawn, too:
the tree takes any, and small ones get planned often.
"""

from typing import ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mem_cache.spec import TreeSpec
from mem_cache.tree.handles import PointKind
from mem_cache.tree.policy import Lru, TurnPolicy
from tests.testing.dictionary_model import Rig, Row
from tests.testing.tree_view import check_spans

NAMESPACES = st.sampled_from(("", "", "", "other"))
SHARES = st.integers(0, 8)
REPLAYS = st.sampled_from((None, 1, 2, 3, 4))
KINDS = st.sampled_from((PointKind.PROMPT_END, PointKind.BRANCH, PointKind.REQUEST_END))


class CacheMachine(RuleBasedStateMachine):
    """Rows start, grow, publish, and go; the tree must agree with the dictionary throughout."""

    spec: ClassVar[TreeSpec]
    pools: ClassVar[tuple[int, int, int]]
    longest: ClassVar[int]

    @initialize(
        replay=REPLAYS, policy=st.sampled_from((Lru, TurnPolicy)), reverse_numbers=st.booleans()
    )
    def build(
        self, replay: int | None, policy: type[Lru | TurnPolicy], reverse_numbers: bool
    ) -> None:
        """Make a cache; a replay is counted in runs of tokens."""
        full, swa, states = self.pools
        self.rig = Rig(
            self.spec,
            full=full,
            swa=swa,
            states=states,
            replay_tokens=None if replay is None else replay * self.longest - 1,
            policy=policy(),
            reverse_numbers=reverse_numbers,
        )
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

    @precondition(lambda self: 0 < len(self.rig.rows) < 4)
    @rule(data=st.data(), count=st.integers(1, 3))
    def fork(self, data: st.DataObject, count: int) -> None:
        """Publish a request and start others from its very end, as n answers to one prompt."""
        row = self._row(data)
        self.rig.publish(row)
        if row.tokens:
            self.rig.add_point(row, row.published, exact=data.draw(st.booleans()))
        tokens, namespace = list(row.tokens), row.namespace
        for _ in range(count):
            answer = [*tokens, *self._runs(data, least=1)]
            if self.rig.start(answer, namespace=namespace) is not None:
                self.history.append(answer)

    @rule(data=st.data(), namespace=NAMESPACES, shares=st.sets(SHARES, max_size=3), kind=KINDS)
    def turn(self, data: st.DataObject, namespace: str, shares: set[int], kind: PointKind) -> None:
        """Run a whole request, with resume points here and there, and some tokens more."""
        row = self.rig.start(self._tokens(data), namespace=namespace)
        if row is None or not row.tokens:
            return
        self.rig.publish(row)
        for share in shares:
            self.rig.add_point(row, max(1, row.published * share // 8), kind=kind)
        self.history.append(list(row.tokens))
        if self.rig.compute(row, self._runs(data, least=0)):
            self.rig.publish(row, ended=True)
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
    @rule(data=st.data(), share=SHARES, exact=st.booleans(), kind=KINDS, give=st.booleans())
    def add_point(
        self, data: st.DataObject, share: int, exact: bool, kind: PointKind, give: bool
    ) -> None:
        """Add a resume point somewhere in what a request has published."""
        rows = [row for row in self.rig.rows if row.published]
        row = rows[data.draw(st.integers(0, len(rows) - 1))]
        position = max(1, row.published * share // 8)
        self.rig.add_point(row, position, exact=exact, kind=kind, give=give)

    @precondition(lambda self: self.rig.rows)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        """Let go of a resume point, perhaps for the second time."""
        self.rig.cache.unlock_point(self._row(data).lock)
        self.rig.sync_removed()

    @precondition(lambda self: self.rig.rows)
    @rule(data=st.data(), publish=st.booleans(), ended=st.booleans())
    def finish(self, data: st.DataObject, publish: bool, ended: bool) -> None:
        """End a request, or abort it with what it has not published."""
        row = self._row(data)
        if publish:
            self.rig.publish(row, ended=ended)
        self.rig.finish(row)

    @rule(share=SHARES)
    def evict_full(self, share: int) -> None:
        """Ask for free pages."""
        self.rig.evict_full(self.rig.full.capacity * share // 8)

    @rule(swa=SHARES, states=SHARES)
    def evict_swa(self, swa: int, states: int) -> None:
        """Ask for free SWA pages and states."""
        self.rig.evict_swa(
            swa_pages=self.rig.swa.capacity * swa // 8,
            states=self.rig.states.capacity * states // 8,
        )

    @rule(namespace=NAMESPACES, share=SHARES)
    def shrink(self, namespace: str, share: int) -> None:
        """Hold a namespace to a quota."""
        has = self.rig.cache.tokens_by_namespace().get(namespace, 0)
        self.rig.shrink(namespace, has * share // 8)

    @precondition(lambda self: self.rig.published)
    @rule(data=st.data(), namespace=NAMESPACES, share=SHARES)
    def set_aside(self, data: st.DataObject, namespace: str, share: int) -> None:
        """Distrust a page, and what follows it; whoever has it locked ends first."""
        self.rig.set_aside(self._tokens(data), share, namespace=namespace)

    @rule(number=st.integers(1, 5))
    def let_an_allocation_fail(self, number: int) -> None:
        """Let one of the next allocations fail although there is room."""
        self.rig.fail_in = number

    @rule(limit=st.integers(0, 9))
    def spans(self, limit: int) -> None:
        """Look at the tree as people do."""
        check_spans(self.rig.cache, limit)

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
        for pool in (self.rig.full, self.rig.swa, self.rig.states):
            assert pool.free == pool.capacity


# Page size, SWA page size, window; units of the pools, tokens of the longest run, examples.
# Without a window the second pool is empty, without states the third.
SIZES: list[tuple[tuple[int, int, int], tuple[int, int, int], int, int]] = [
    ((1, 1, 1), (24, 6, 5), 3, 120),
    ((1, 1, 4), (24, 16, 5), 3, 120),
    ((1, 1, 128), (24, 70, 5), 3, 80),
    ((4, 1, 1), (14, 6, 5), 5, 150),
    ((4, 2, 4), (14, 9, 5), 5, 250),
    ((4, 4, 128), (24, 40, 5), 9, 100),
    ((256, 2, 1), (9, 6, 5), 200, 40),
    ((256, 64, 4), (9, 6, 5), 200, 40),
    ((256, 64, 128), (9, 12, 5), 200, 40),
    ((4, 2, 4), (14, 9, 0), 5, 90),
    ((1, 1, 1), (24, 6, 0), 3, 60),
    ((256, 64, 128), (9, 12, 0), 200, 20),
    ((4, 2, 0), (14, 0, 5), 5, 60),
    ((1, 1, 0), (24, 0, 5), 3, 60),
    ((4, 2, 0), (14, 0, 0), 5, 60),
    ((1, 1, 0), (24, 0, 0), 3, 60),
    ((256, 64, 0), (9, 0, 0), 200, 20),
]


def _run(
    sizes: tuple[int, int, int], pools: tuple[int, int, int], *, longest: int, examples: int
) -> None:
    fields = {
        "spec": TreeSpec(*sizes, has_state=pools[2] > 0),
        "pools": pools,
        "longest": longest,
    }
    machine = type("CacheMachine", (CacheMachine,), fields)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
        ),
    )


@pytest.mark.parametrize(("sizes", "pools", "longest", "examples"), SIZES)
def test_the_tree_agrees_with_a_dictionary_whatever_requests_do(
    sizes: tuple[int, int, int], pools: tuple[int, int, int], longest: int, examples: int
) -> None:
    _run(sizes, pools, longest=longest, examples=examples // 5)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("sizes", "pools", "longest", "examples"), SIZES)
def test_the_tree_agrees_with_a_dictionary_for_many_more_requests(
    sizes: tuple[int, int, int], pools: tuple[int, int, int], longest: int, examples: int
) -> None:
    _run(sizes, pools, longest=longest, examples=20 * examples)
