"""Prefixes copied between replicas: hits as any other, nothing lost, nothing held."""

import random
from typing import Any

import numpy as np
import pytest

from mem_cache.spec import PoolSizes, TreeSpec
from runtime.messages import Flush, Flushed
from runtime.scheduler.prefix_copies import copied_cost
from runtime.scheduler.request import Request
from runtime.scheduler.settings import CopyLimits
from runtime.wire.step import UnitTransfer
from tests.runtime.scheduler.test_loop import prompt_of
from tests.testing.joint_rig import JointRig
from tests.testing.token_exchange import pairs_of
from tests.testing.token_runner import expected_output

AMPLE = PoolSizes(full_pages=200, swa_pages=200, states=60)
TIGHT = PoolSizes(full_pages=30, swa_pages=60, states=12)
PAGES_ALONE = TreeSpec(page_size=8, swa_page_size=4, window=0, has_state=False)
HISTORY = prompt_of(1, 100)
MORE = range(1, 12)
# Three pages, or two with a point.
FEW = CopyLimits(page_bytes=10, swa_page_bytes=2, state_bytes=4, step_bytes=30)


class Spread(JointRig):
    """Requests go where the test wants them, or where placement does."""

    def __init__(self, sizes: PoolSizes, count: int = 2, **more: Any) -> None:
        super().__init__(sizes, count, **more)
        self.wanted: dict[int, int] = {}
        placement = self.scheduler._placement
        choose = placement.choose

        def chosen(request: Request) -> tuple[Any, int]:
            place = self.wanted.get(request.id)
            return choose(request) if place is None else (self.replicas[place], 0)

        placement.choose = chosen

    def send_to(self, place: int, prompt: list[int], new: int = 5) -> int:
        """Queue a request for a replica."""
        request = self.send(prompt, new)
        self.wanted[request] = place
        return request

    def ask_at(self, place: int, prompt: list[int], new: int = 5) -> list[int]:
        """Serve a request alone in a replica; return its tokens, which are right."""
        request = self.send_to(place, prompt, new)
        self.run()
        assert self.tokens(request) == expected_output(prompt, new, 50)
        return self.tokens(request)

    @property
    def transfers(self) -> list[UnitTransfer]:
        """All so far."""
        return [one for exchange in self.executor.exchanges for one in exchange.transfers]

    @property
    def counted(self) -> tuple[float, float]:
        """How many tokens were copied, and how many computed again."""
        counters = self.scheduler.state().counters
        return counters["copied_tokens"], counters["elsewhere_tokens"]

    def assert_nothing_held(self, *, copying: int = 0) -> None:
        """Assert that so many copies lock trees, one lock in each that takes part."""
        for replica in self.replicas:
            assert replica.residency.cache.locks == replica.sets.running_count + copying
        assert not self.scheduler._copies._step.held


@pytest.mark.parametrize("spec", [None, PAGES_ALONE], ids=["windows and states", "pages alone"])
def test_a_copied_prefix_is_a_hit_as_a_local_one(spec: TreeSpec | None, either_way: bool) -> None:
    more: dict[str, Any] = {"overlap": either_way} | ({} if spec is None else {"spec": spec})
    rig = Spread(AMPLE, **more)
    reply = rig.ask_at(0, HISTORY)
    turn = [*HISTORY, *reply, *prompt_of(2, 7)]
    before = rig.computed
    rig.ask_at(1, turn)
    counted = rig.counted
    rig.ask_at(0, [*HISTORY, *reply, *prompt_of(4, 7)])

    # The last token of an answer is fed with overlap only.
    mine, theirs = (now - then for now, then in zip(rig.computed, before, strict=True))
    assert mine == theirs == 8 - either_way
    assert counted == (len(turn) - theirs, 0)
    [one] = rig.transfers
    assert (one.giver, one.taker) == (0, 1)
    assert len(pairs_of(one.pages).T) == 13 + either_way
    assert len(pairs_of(one.windows).T) == (2 if spec is None else 0)
    assert len(pairs_of(one.states).T) == (1 if spec is None else 0)
    rig.assert_nothing_held()
    rig.assert_conserved()


def test_a_prompt_without_a_point_near_is_replayed_from_copied_pages() -> None:
    rig = Spread(AMPLE, replay=24)
    rig.ask_at(0, HISTORY)
    rig.replicas[0].residency.cache.evict_swa(states=60)
    rig.ask_at(1, [*HISTORY, 1, 2, 3])

    counters = rig.replicas[1].stats.counters
    assert counters["replayed_tokens"] == 24
    assert rig.counted[0] >= 76
    rig.assert_conserved()


def test_what_the_taker_has_is_not_copied_again(either_way: bool) -> None:
    rig = Spread(AMPLE, overlap=either_way)
    for place in (0, 1):
        rig.ask_at(place, HISTORY[:42])
    assert not rig.transfers or len(rig.transfers) == 1
    first = len(rig.transfers)
    rig.ask_at(0, HISTORY)
    rig.ask_at(1, [*HISTORY, 3])

    later = rig.transfers[first:]
    assert sum(len(pairs_of(one.pages).T) for one in later) == 13 - 42 // 8
    rig.assert_conserved()


def test_points_that_are_copied_leave_room_for_the_rows_of_their_replica() -> None:
    """Six rows need 12 SWA pages of 14 in the very step that copies from two points."""
    rig = Spread(PoolSizes(full_pages=200, swa_pages=14, states=60), rows=6, chunk=100)
    others = prompt_of(8, 100)
    for prompt in (HISTORY, others):
        rig.ask_at(1, prompt)

    prompts = [[*HISTORY, 1], [*others, 1], *(prompt_of(10 + k, 10) for k in range(6))]
    asked = [rig.send_to(int(k > 1), prompt) for k, prompt in enumerate(prompts)]
    rig.run()

    for request, prompt in zip(asked, prompts, strict=True):
        assert rig.tokens(request) == expected_output(prompt, 5, 50)
    assert rig.transfers
    rig.assert_nothing_held()
    rig.assert_conserved()


@pytest.mark.parametrize("theirs", [48, 50])
def test_a_point_is_copied_to_where_there_are_more_pages_already(theirs: int) -> None:
    rig = Spread(AMPLE)
    rig.ask_at(0, HISTORY[:theirs], new=0)
    rig.ask_at(1, HISTORY)
    rig.replicas[1].residency.cache.evict_swa(states=60)
    before = rig.computed[1]

    rig.ask_at(1, [*HISTORY, 3])

    assert rig.computed[1] - before == 101 - theirs
    assert len(pairs_of(rig.transfers[-1].pages).T) == 0
    assert len(pairs_of(rig.transfers[-1].states).T) == 1
    rig.assert_nothing_held()
    rig.assert_conserved()


@pytest.mark.parametrize("length", [1, 30])
def test_little_is_computed_rather_than_copied(length: int) -> None:
    rig = Spread(AMPLE)
    short = prompt_of(4, length)
    rig.ask_at(0, short)
    rig.ask_at(1, [*short, 1])

    assert copied_cost(length) == length
    assert copied_cost(1000) < 60
    assert not rig.transfers
    assert rig.counted == (0, length)


def test_a_long_prefix_comes_in_pieces_of_bounded_size(either_way: bool) -> None:
    rig = Spread(AMPLE, overlap=either_way, copies=FEW)
    rig.ask_at(0, HISTORY)
    steps = len(rig.executor.plans)
    rig.ask_at(1, [*HISTORY, 1, 2])

    sizes = [len(pairs_of(one.pages).T) for one in rig.transfers]
    assert sizes == [3, 3, 3, 3, 1]
    assert [bool(one.states) for one in rig.transfers] == [False] * 4 + [True]
    assert rig.executor.plans[steps : steps + 4] == [[None, None]] * 4
    assert rig.counted == (100, 0)
    rig.assert_nothing_held()
    rig.assert_conserved()


def test_copies_of_one_turn_share_what_a_step_may_copy() -> None:
    rig = Spread(AMPLE, 3, rows=4, copies=FEW)
    other = prompt_of(5, 100)
    rig.ask_at(0, HISTORY)
    rig.ask_at(1, other)
    for place in (0, 1):
        rig.send_to(place, [place], 40)
    rig.turn_until(lambda: all(len(r.sets.decoding) == 1 for r in rig.replicas[:2]))
    requests = [rig.send_to(2, [*text, 1], 3) for text in (HISTORY, other)]
    rig.run()

    for exchange in rig.executor.exchanges:
        units = [(one.pages, one.windows, one.states) for one in exchange.transfers]
        pages, windows, states = (
            sum(len(pairs_of(a).T) for a in kind) for kind in zip(*units, strict=True)
        )
        assert 10 * pages + 2 * windows + 4 * states <= FEW.step_bytes
    for request, text in zip(requests, (HISTORY, other), strict=True):
        assert rig.tokens(request) == expected_output([*text, 1], 3, 50)
    assert rig.counted == (200, 0)
    rig.assert_conserved()


@pytest.mark.parametrize("turns", [1, 3, 5])
def test_an_abort_between_pieces_holds_nothing(turns: int, either_way: bool) -> None:
    rig = Spread(AMPLE, overlap=either_way, copies=FEW)
    rig.ask_at(0, HISTORY)
    request = rig.send_to(1, [*HISTORY, 1, 2])
    for _ in range(turns):
        rig.scheduler.turn()
        rig.assert_nothing_held()
    assert len(rig.transfers) == turns
    rig.abort(request)
    rig.run()

    rig.assert_nothing_held()
    rig.ask_at(1, [*HISTORY, 1, 2])
    rig.assert_conserved()


def test_who_finds_no_room_computes() -> None:
    rig = Spread(PoolSizes(full_pages=24, swa_pages=60, states=12), copies=FEW)
    rig.ask_at(0, HISTORY)
    rig.send_to(1, prompt_of(6, 90), 60)
    rig.turn_until(lambda: len(rig.replicas[1].sets.decoding) == 1)
    late = rig.send_to(1, HISTORY[:60], 3)
    for _ in range(5):
        rig.scheduler.turn()
        rig.assert_nothing_held()
    assert not rig.transfers
    rig.run()

    assert rig.tokens(late) == expected_output(HISTORY[:60], 3, 50)
    rig.assert_conserved()


@pytest.mark.parametrize("what", ["make_room", "drop_points"])
def test_room_that_cannot_be_had_after_all_leaves_nothing_locked(
    what: str, monkeypatch: pytest.MonkeyPatch, either_way: bool
) -> None:
    rig = Spread(AMPLE, overlap=either_way)
    rig.ask_at(0, HISTORY)
    evictions = rig.replicas[1].residency.evictions
    have, failed = getattr(evictions, what), list[Any]()

    def fail_once(*wanted: Any, **more: Any) -> bool:
        if failed:
            return have(*wanted, **more)
        failed.append(wanted or more)
        rig.assert_nothing_held(copying=1)
        return False

    monkeypatch.setattr(evictions, what, fail_once)
    rig.ask_at(1, [*HISTORY, 1])

    assert failed
    assert not rig.transfers
    assert rig.counted == (0, 100)
    rig.assert_nothing_held()
    rig.assert_conserved()


def test_a_request_whose_pieces_are_evicted_computes() -> None:
    rig = Spread(AMPLE, copies=FEW)
    rig.ask_at(0, HISTORY)
    request = rig.send_to(1, [*HISTORY, 1])
    rig.scheduler.turn()
    rig.replicas[1].residency.cache.evict_full(AMPLE.full_pages)
    rig.run()

    assert rig.tokens(request) == expected_output([*HISTORY, 1], 5, 50)
    assert len(rig.transfers) == 1
    assert rig.counted == (0, 100)
    rig.assert_conserved()


def test_what_is_only_arriving_is_copied_from_where_it_is(either_way: bool) -> None:
    rig = Spread(AMPLE, 3, overlap=either_way)
    rig.ask_at(0, HISTORY)
    requests = [rig.send_to(place, [*HISTORY, place], 3) for place in (1, 2)]
    rig.run()

    assert [(one.giver, one.taker) for one in rig.transfers] == [(0, 1), (0, 2)]
    assert len(rig.executor.exchanges) == 1
    for place, request in enumerate(requests, 1):
        assert rig.tokens(request) == expected_output([*HISTORY, place], 3, 50)
    rig.assert_conserved()


def test_a_point_that_is_only_arriving_is_copied_from_where_it_is() -> None:
    rig = Spread(AMPLE, 3)
    rig.ask_at(0, HISTORY)
    rig.ask_at(2, HISTORY)
    rig.replicas[0].residency.cache.evict_swa(states=60)
    requests = [rig.send_to(place, [*HISTORY, place], 3) for place in (0, 1)]
    rig.run()

    _, point, whole = rig.transfers
    assert [(one.giver, one.taker) for one in (point, whole)] == [(2, 0), (2, 1)]
    assert (point.pages, bool(point.states)) == (b"", True)
    for place, request in enumerate(requests):
        assert rig.tokens(request) == expected_output([*HISTORY, place], 3, 50)
    rig.assert_conserved()


def test_the_copy_that_stays_behind_is_evicted_first() -> None:
    rig = Spread(TIGHT)
    older, newer = prompt_of(7, 70), prompt_of(8, 70)
    rig.ask_at(0, older)
    newer += rig.ask_at(0, newer)
    rig.ask_at(1, [*newer, 1])
    rig.ask_at(0, prompt_of(9, 110))

    cache = rig.replicas[0].residency.cache
    assert cache.peek(_ids(older)).full_tokens >= 69
    assert cache.peek(_ids(newer)).full_tokens < 48
    assert rig.replicas[1].residency.cache.peek(_ids(newer)).start >= 69
    rig.assert_conserved()


def test_a_shared_beginning_stays_where_others_use_it() -> None:
    rig = Spread(AMPLE)
    for k in range(3):
        rig.ask_at(0, [*HISTORY, k, *prompt_of(k, 20)])
    rig.ask_at(1, [*HISTORY, 7, 8])
    cache = rig.replicas[0].residency.cache

    assert int(cache.arrays.stamp.min()) >= 0
    assert int(cache.arrays.point_stamp.min()) >= 0


def test_a_flush_finds_nothing_locked(either_way: bool) -> None:
    rig = Spread(AMPLE, overlap=either_way, copies=FEW)
    rig.ask_at(0, HISTORY)
    rig.abort(rig.send_to(1, [*HISTORY, 1]))
    rig.run()
    rig.socket.inbox.append(Flush(1))
    rig.run()

    assert [m.done for m in rig.socket.outbox if isinstance(m, Flushed)] == [True]


@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in MORE)])
@pytest.mark.parametrize("replay", [24, pytest.param(None, marks=pytest.mark.slow)])
def test_random_conversations_lose_nothing(seed: int, replay: int | None, either_way: bool) -> None:
    """Turns go anywhere; pools are tight, requests are aborted and retracted at any time."""
    rig = Spread(TIGHT, rows=3, overlap=either_way, replay=replay, copies=FEW if seed % 2 else None)
    draw = random.Random(seed)
    texts = [prompt_of(draw.randrange(6), 40) + prompt_of(k, 5) for k in range(5)]
    asked: dict[int, tuple[int, list[int], int]] = {}
    gone: set[int] = set()
    for _ in range(30):
        k, new = draw.randrange(len(texts)), draw.randrange(1, 20)
        send = rig.send if draw.random() < 0.3 else lambda *a: rig.send_to(draw.randrange(2), *a)
        asked[send(texts[k], new)] = (k, texts[k], new)
        for _ in range(draw.randrange(1, 12)):
            rig.scheduler.turn()
        if draw.random() < 0.2:
            gone.add(draw.choice(list(asked)))
            rig.abort(*gone)
        texts[k] = [*texts[k], *prompt_of(draw.randrange(99), draw.randrange(1, 9))][:120]
        if len(texts[k]) >= 110:
            texts[k] = prompt_of(draw.randrange(99), 30)
    rig.run()

    for request, (_, prompt, new) in asked.items():
        if request not in gone:
            assert rig.tokens(request) == expected_output(prompt, new, 50)
    counted = rig.scheduler.state().counters
    assert counted["copied_tokens"] > 0
    assert counted["evicted_pages"] > 0
    assert rig.transfers
    rig.assert_nothing_held()
    rig.assert_conserved()


def _ids(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)
