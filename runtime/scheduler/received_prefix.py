"""Puts a prefix that another replica computed into a tree: allocates its units, adds its nodes.

The nodes are added at once. The contents of the units are copied before the next step is computed,
which may start from them: see `runtime.scheduler.prefix_copies`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mem_cache.spec import div_ceil
from mem_cache.tree.handles import Match, Point, PointKind
from runtime.scheduler.request import Request
from runtime.scheduler.residency import Residency

__all__ = ["Prefix", "Received", "receive"]

_Units = Sequence[int] | np.ndarray


@dataclass(frozen=True, slots=True)
class Prefix:
    """What another tree has of a request.

    pages   [ceil(tokens / page size)] int32 of the other tree
    tokens  how many
    point   the resume point to start from, if it comes along
    turns   of the conversation so far
    """

    pages: np.ndarray
    tokens: int
    point: Point | None
    turns: int


@dataclass(frozen=True, slots=True)
class Received:
    """Which units are to be copied: (source, destination) of each pool."""

    pages: list[tuple[int, int]]
    swa_pages: list[tuple[int, int]]
    states: list[tuple[int, int]]


def receive(
    residency: Residency, request: Request, match: Match, prefix: Prefix, *, reserve_pages: int
) -> Received | None:
    """Publish the prefix of a waiting request in units of its own.

    match          what the tree has of it already; nothing has left the tree since
    reserve_pages  that must stay free besides those of the request

    Returns None, and takes nothing, if pages, or units for the point, cannot be had beside what
    running rows and the request need.
    """
    page, cache = residency.spec.page_size, residency.cache
    # The tree may have more pages than come, and only lack a point to start from.
    first = min(match.full_tokens, prefix.tokens) // page
    count = div_ceil(prefix.tokens, page) - first
    of_request = div_ceil(request.total, page) - prefix.tokens // page + reserve_pages
    # Its own point is not needed: the one that comes is further on.
    lock = cache.lock(match._replace(point=None))
    there = residency.full.free + cache.evictable_pages >= count + of_request
    there = there and residency.evictions.make_room(count)
    position = 0 if prefix.point is None else min(prefix.point.position, prefix.tokens)
    if not there or (position and not residency.make_point_room(position)):
        cache.unlock(lock)
        return None
    own = residency.full.alloc(count)
    insertion = cache.insert(
        request.tokens[: prefix.tokens],
        np.concatenate((match.pages[:first], own)),
        namespace=request.namespace,
        lock=lock,
        output_from=request.prompt_tokens,
        copied_turns=prefix.turns,
    )
    residency.note_inserted(insertion, request.namespace)
    residency.full.decref(own)
    new = insertion.first_new
    pages = _pairs(prefix.pages[new:], own[new - first :])
    swa_pages, states = _hang(residency, insertion.node, position, prefix)
    residency.keep_quota(request.namespace)
    cache.unlock(lock)
    return Received(pages, swa_pages, states)


def _hang(
    residency: Residency, node: int, position: int, prefix: Prefix
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Hang the resume point into the tree; return SWA pages and states to be copied for it.

    One further on than the prefix serves its end, but not the position before that.
    """
    point = prefix.point
    if point is None:
        return [], []
    swa = residency.swa.alloc(residency.spec.window_pages_at(position)).tolist()
    state = residency.states.take() if residency.spec.has_state else 0
    added = residency.cache.add_point(
        node,
        position,
        swa_pages=swa,
        state=state,
        exact=point.exact or position < point.position,
        kind=PointKind.PASSED if prefix.turns else PointKind.SHARED,
        give=True,
    )
    if not added:
        return [], []
    return _pairs(point.swa_pages, swa), [(point.state, state)] if state else []


def _pairs(source: _Units, target: _Units) -> list[tuple[int, int]]:
    """Pair units; there may be more sources than targets."""
    return [(int(a), int(b)) for a, b in zip(source, target, strict=False)]
