"""What the tree answers, and what a request holds: match, lock, insertion.

A *node* is where a lock sits: a page of the tree by a number of its own, which it keeps for as long
as it is there, or the top of a namespace as a number below 0.
"""

from enum import IntEnum
from typing import NamedTuple

import numpy as np


class PointKind(IntEnum):
    """Why a resume point was left.

    Once a request started from it, BRANCH, BOUNDARY and WAYPOINT become SHARED, and REQUEST_END
    becomes PASSED.

    PROMPT_END   at the end of a prompt: for the same prompt again, or its edited answer
    BRANCH       where a sequence parts from others, or a full match had no point
    SHARED       a point inside prompts that was used since
    PASSED       the end of a request whose next turn came
    BOUNDARY     where other prompts are likely to part from this one: at the begin of its last
                 page, of its first and of its last user turn
    WAYPOINT     elsewhere in a prompt, where none has parted from it yet
    REQUEST_END  the end of a request; the kind of its page is added to it
    """

    PROMPT_END = 0
    BRANCH = 1
    SHARED = 2
    PASSED = 3
    BOUNDARY = 4
    WAYPOINT = 5
    REQUEST_END = 6


class Point(NamedTuple):
    """Everything besides full pages that is needed to compute `position` next.

    id         its number, for as long as it is in the tree
    position   tokens before it are what the state was computed from; never 0
    state      unit of the pool of states; no other point has it. 0 where the model has none
    swa_pages  of the window, in the order of TreeSpec.window_pages_at(position)
    exact      it cannot serve the position before its own, as other points do: it was itself
               copied from the point one further on, and lacks what that one had lost
    """

    id: int
    position: int
    state: int
    swa_pages: tuple[int, ...]
    exact: bool


class Match(NamedTuple):
    """What the tree has of a sequence, and the plan. Lock it before anything else changes the tree.

    full_tokens  F, the positions whose full pages are there; it may end inside a page
    pages        [ceil(F / page_size)] int32; of the last one only F % page_size positions are
                 valid if F ends inside it
    node         which has position F - 1, or the top; 0 for a namespace not there yet
    namespace    where it was looked for
    point        the resume point to start from, or None: then a replay, or nothing to reuse; or
                 a model that has neither window nor state, which starts anywhere
    start        the first position to compute: S with a point, else where a replay to F begins;
                 F where there is nothing but pages
    turns        that the conversation will have had at the end of this request
    tick         the time at which it counts as a request, in requests
    point_evicted  whether a resume point between `start` and F was evicted, and is missing now
    """

    full_tokens: int
    pages: np.ndarray
    node: int
    namespace: str
    point: Point | None
    start: int
    turns: int
    tick: int
    point_evicted: bool = False

    @property
    def replays(self) -> bool:
        """Whether tokens before F are computed again without a point, and not written."""
        return self.point is None and 0 < self.start < self.full_tokens


class Lock:
    """A request's hold on the tree: a node with everything above it, and maybe a resume point.

    node   what it protects
    point  the number of the resume point that it pins, or 0
    turns  of the conversation, this request's included, as far as its tokens have told
    tick   when it was matched
    """

    __slots__ = ("node", "point", "released", "tick", "turns")

    def __init__(self, node: int, *, point: int, turns: int, tick: int) -> None:
        self.node = node
        self.point = point
        self.turns = turns
        self.tick = tick
        self.released = False


class Insertion(NamedTuple):
    """Where a sequence of n tokens is now.

    pages       [n // page_size] int32, the tree's ids for all whole pages
    node        which has position n - 1
    new_tokens  tokens that the tree did not have before
    first_new   index of the first page that the tree adopted; those from there on are new
    """

    pages: np.ndarray
    node: int
    new_tokens: int
    first_new: int
