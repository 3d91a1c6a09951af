"""The small examples by which sliding-window radix caches are usually explained.

Window 4, page 1. A node without a resume point is a tombstone: its full pages live on.
"""

from collections import Counter

import numpy as np
import pytest

from mem_cache.allocator import PageAllocator
from mem_cache.spec import TreeSpec
from mem_cache.tree.radix import ShadowRadixCache
from tests.testing.dictionary_model import Rig


@pytest.mark.parametrize(("replay", "start"), [(None, 0), (2, 2), (3, 1), (4, 0)])
def test_a_tombstone_in_a_chain_vetoes_no_match_but_has_no_resume_point(
    replay: int | None, start: int
) -> None:
    """A (tombstone, 2 tokens), B (2), C (2), with a point at the end of C."""
    spec = TreeSpec(page_size=1, swa_page_size=1, window=4)
    rig = Rig(spec, full=9, swa=9, states=3, replay_tokens=replay)
    rig.complete([1, 2])
    rig.complete([1, 2, 3, 4])
    rig.complete([1, 2, 3, 4, 5, 6], 6)

    whole = rig.match([1, 2, 3, 4, 5, 6], limit=6)
    assert (whole.full_tokens, whole.start) == (6, 6)
    assert whole.point is not None
    assert len(whole.point.swa_pages) == 4

    stopped = rig.match([1, 2, 3, 4], limit=4)
    assert (stopped.full_tokens, stopped.point, stopped.start) == (4, None, start)
    assert stopped.pages.tolist() == whole.pages[:4].tolist()


def test_the_chain_lives_on_as_tombstones_when_its_point_is_evicted() -> None:
    rig = Rig(TreeSpec(1, 1, 4), full=9, swa=9, states=3, replay_tokens=4)
    pages = rig.complete([1, 2, 3, 4, 5, 6], 6)

    rig.evict_swa(states=3)

    match = rig.match([1, 2, 3, 4, 5, 6], limit=6)
    assert (match.full_tokens, match.point, match.start) == (6, None, 2)
    assert match.pages.tolist() == pages
    assert (rig.swa.free, rig.states.free) == (9, 3)


class Overlap:
    """A request of eight tokens inserted over a tombstone of the first four.

    old, mine  full pages of the tombstone, of the request
    window     the request's own SWA pages by position, those not evicted
    """

    def __init__(self, spec: TreeSpec, evicted: int) -> None:
        self.spec = spec
        self.full, self.swa = PageAllocator("full", 20), PageAllocator("swa", 20)
        self.states = PageAllocator("states", 5)
        self.cache = ShadowRadixCache(spec, full=self.full, swa=self.swa, states=self.states)
        self.tokens = np.arange(1, 9, dtype=np.int32)
        self.old, self.mine = self.full.alloc(4), self.full.alloc(8)
        self.cache.insert(self.tokens[:4], self.old)
        self.full.decref(self.old)
        self.window = dict(zip(range(evicted, 8), self.swa.alloc(8 - evicted), strict=True))

    def revive(self, node: int) -> list[int]:
        """Leave points at 4 and 8 where the whole window before them is live; return where."""
        size = self.spec.window
        revived: list[int] = []
        for end in (4, 8):
            live = [p for p in range(end - size, end) if p in self.window]
            if len(live) < size:
                continue
            state = self.states.take()
            units = [int(self.window[p]) for p in sorted(live, key=lambda p: p % size)]
            assert self.cache.add_point(node, end, swa_pages=units, state=state)
            self.states.decref([state])
            revived.append(end)
        return revived

    def start_at(self, end: int) -> int:
        """Return where a request would start that has the first `end` tokens, then others."""
        other = np.array([*self.tokens[:end], 99, 99], np.int32)
        return self.cache.match(other, limit=end).start


@pytest.mark.parametrize(
    ("window", "evicted", "revived"),
    [
        (4, 0, [4, 8]),  # all live: the tombstone is revived
        (4, 2, [8]),  # [2, 4) of it is live, which is no whole window
        (2, 2, [4, 8]),  # the same is a whole window of 2
        (4, 8, []),  # nothing is live
        (2, 8, []),
    ],
)
def test_eight_tokens_over_a_tombstone_of_four_revive_keep_and_give_back(
    window: int, evicted: int, revived: list[int]
) -> None:
    case = Overlap(TreeSpec(1, 1, window), evicted)
    assert case.start_at(4) == 0

    found = case.cache.insert(case.tokens, case.mine)
    assert case.revive(found.node) == revived

    # The tree keeps its four pages and adopts the other four; the duplicates are given back.
    assert found.pages.tolist() == [*case.old, *case.mine[4:]]
    assert (found.new_tokens, found.first_new) == (4, 4)
    assert case.full.decref(case.mine) == 4
    assert [case.full.references(page) for page in case.mine] == [0] * 4 + [1] * 4
    assert [case.start_at(end) for end in (4, 8)] == [
        end if end in revived else 0 for end in (4, 8)
    ]

    # What points hold of the window stays, the rest of it is free with the request.
    case.swa.decref(list(case.window.values()))
    held = {int(case.window[p]) for end in revived for p in range(end - window, end)}
    assert case.swa.free == 20 - len(held)
    assert {unit for unit in range(1, 21) if case.swa.references(unit)} == held
    case.cache.check(full=Counter(), swa=Counter(), states=Counter())


def test_a_second_request_over_the_same_tokens_changes_nothing_and_gets_all_back() -> None:
    case = Overlap(TreeSpec(1, 1, 4), 0)
    case.revive(case.cache.insert(case.tokens, case.mine).node)
    case.full.decref(case.mine)
    again = case.full.alloc(8)

    found = case.cache.insert(case.tokens, again)

    assert found.pages.tolist() == [*case.old, *case.mine[4:]]
    assert (found.new_tokens, found.first_new) == (0, 8)
    state = case.states.take()
    units = [int(case.window[p]) for p in range(4, 8)]
    assert not case.cache.add_point(found.node, 8, swa_pages=units, state=state)
    assert not case.cache.add_point(found.node, 8, swa_pages=units, state=state, give=True)
    assert case.states.references(state) == 0
    assert case.full.decref(again) == 8
