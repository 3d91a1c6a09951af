"""What a match says, against the dictionary of prefixes: its pages, and where it would start."""

from typing import Protocol

from mem_cache.spec import TreeSpec, div_ceil
from mem_cache.tree.handles import Match
from mem_cache.tree.radix import ShadowRadixCache
from tests.testing.prefixes import Prefixes, read_prefixes

LOST_POINT = 8  # `FLAG_LOST_POINT` of the C core


class Checked(Protocol):
    """What is needed of a rig; see `dictionary_model.Rig`."""

    spec: TreeSpec
    cache: ShadowRadixCache
    prefixes: Prefixes
    points: dict[int, bool]
    replay_tokens: int | None
    page_content: dict[int, list[int]]
    swa_content: dict[int, dict[int, int]]
    state_content: dict[int, int]


def check_match(rig: Checked, match: Match, ids: list[int]) -> None:
    """Verify a match of the tokens whose prefixes are `ids`."""
    _check_pages(rig, match, ids)
    _check_plan(rig, match, ids)
    first = 0 if match.point is None else match.start // rig.spec.page_size
    behind = rig.cache.arrays.node_of[match.pages[first:]]
    assert match.point_evicted == (rig.cache.arrays.flags[behind] & LOST_POINT).any()


def _check_pages(rig: Checked, match: Match, ids: list[int]) -> None:
    page = rig.spec.page_size
    assert len(match.pages) == div_ceil(match.full_tokens, page)
    for position in range(match.full_tokens):
        content = rig.page_content[int(match.pages[position // page])]
        assert content[position % page] == ids[position + 1]


def _check_plan(rig: Checked, match: Match, ids: list[int]) -> None:
    full, point = match.full_tokens, match.point
    if not rig.spec.has_points:
        assert (match.start, point) == (full, None)
        assert not match.replays
        return
    best = max((k for k in range(1, full + 1) if ids[k] in rig.points), default=0)
    follows = 0 < full < len(ids) - 1 and rig.points.get(ids[full + 1]) is False
    replay = max(0, full - (full if rig.replay_tokens is None else rig.replay_tokens))
    if point is None:
        assert match.start == replay
        assert best <= replay
        assert not follows or full == replay
    elif point.position <= full:
        assert match.start == point.position == best > replay
        assert best == full or not follows
    else:
        assert point.position == full + 1 == match.start + 1 > replay
        assert not point.exact
        assert 0 < full > best
    if point is not None:
        _check_point(rig, match, ids)


def _check_point(rig: Checked, match: Match, ids: list[int]) -> None:
    full, point = match.full_tokens, match.point
    assert point is not None
    _, points = read_prefixes(rig.cache, rig.prefixes)
    number = next(number for number, found in points.items() if found == point.id)
    assert rig.points[number] == point.exact
    expected = number if point.position <= full else rig.prefixes.parent[number]
    assert expected == ids[min(point.position, full)]
    assert (point.state != 0) == rig.spec.has_state
    assert not point.state or rig.state_content[point.state] == number
    size, position = rig.spec.swa_page_size, point.position
    for p in range(max(0, position - rig.spec.window), min(position, full)):
        unit = point.swa_pages[p // size % rig.spec.window_pages]
        assert rig.swa_content[unit][p % size] == ids[p + 1]
