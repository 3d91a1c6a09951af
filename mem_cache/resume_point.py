"""Everything besides full pages that is needed to compute one position next."""

from typing import Generic, TypeVar

from mem_cache.lru import Link

N = TypeVar("N")


class ResumePoint(Link, Generic[N]):
    """The window and the compress state as they were before `position` was computed.

    position      tokens before it are what the state was computed from; never 0
    node          where it hangs: the node whose (start, end] holds the position
    swa_pages     SWA pages of the window, in the order of `TreeSpec.window_page_range(position)`
    ring          unit of the compress-state pool
    exact         it cannot serve the position before its own, as other points do: it was itself
                  copied from the point one further on, and lacks what that one had lost
    swa_lock_ref  requests that pin it; a pinned point stands in no list and is never evicted
    alive         False once it left the tree and its units were given back
    """

    __slots__ = ("alive", "exact", "node", "position", "ring", "swa_lock_ref", "swa_pages")

    def __init__(
        self,
        position: int,
        node: N,
        *,
        swa_pages: tuple[int, ...],
        ring: int,
        exact: bool = False,
    ) -> None:
        super().__init__()
        self.position = position
        self.node = node
        self.swa_pages = swa_pages
        self.ring = ring
        self.exact = exact
        self.swa_lock_ref = 0
        self.alive = True
