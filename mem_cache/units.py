"""The allocators of one cache: who hands out its full pages, SWA pages and states."""

from mem_cache.allocator import PageAllocator
from mem_cache.spec import PoolSizes

__all__ = ["Units"]


class Units:
    """One allocator for each kind of unit; one that a model has not is empty.

    live_states  the first so many states belong to the rows of the request table for good, row r
                 has state r + 1; 0: rows take and give back states as they do pages
    """

    def __init__(self, sizes: PoolSizes) -> None:
        self.full = PageAllocator("full", sizes.full_pages)
        self.swa = PageAllocator("swa", sizes.swa_pages)
        self.states = PageAllocator("rings", sizes.states)
        self.live_states = sizes.live_states
        # Taken once, in order from 1 on.
        self.states.alloc(self.live_states)
