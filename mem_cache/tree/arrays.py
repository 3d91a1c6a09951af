"""The arrays that the C core works on, and Python's view of them. Owns memory, decides nothing."""

import ctypes

import numpy as np

from mem_cache.allocator import PageAllocator
from mem_cache.spec import TreeSpec
from mem_cache.tree.core.binding import (
    LIST,
    PAGE_WORDS,
    POINT_WORDS,
    POOLS,
    RETURNS,
    ROOT,
    SAVE_CLASSES,
    TRACE,
    USES,
    CLinks,
    CTree,
    address,
)

_FIRST_ROOTS = 64


class TreeArrays:
    """Everything `core.h` calls a Tree. Memory is taken as it is touched, not at once.

    Arrays by node are [full capacity + 1], by point [capacity of points + 1]; their names and
    meanings are those of the C struct.
    """

    def __init__(
        self,
        spec: TreeSpec,
        *,
        full: PageAllocator,
        swa: PageAllocator,
        states: PageAllocator,
        page_kinds: int,
        point_kinds: int,
        end_kind: int,
        replay: int,
    ) -> None:
        # Each point keeps a state of its own; without states, at least one SWA page.
        most = states.capacity if spec.has_state else swa.capacity if spec.window else 0
        pages, points = full.capacity + 1, most + 1
        self.node_ids, self.point_ids = (
            PageAllocator("nodes", full.capacity),
            PageAllocator("points", most),
        )
        self.node_of, self.unit = (np.zeros(pages, np.int32) for _ in range(2))
        self.point_of = np.zeros(states.capacity + 1, np.int32)
        self.tokens = np.zeros((pages, spec.page_size), np.int32)
        self.stamp = np.zeros(pages, np.int64)
        self.kind, self.turns, self.flags = (np.zeros(pages, np.uint8) for _ in range(3))
        self.words = {name: np.zeros(pages, np.int32) for name in PAGE_WORDS}
        self.trail = np.zeros(pages, np.uint64)
        # One entry for each page that may be an end, and as many for ends that were evicted.
        self.traces = np.zeros(1 << pages.bit_length(), TRACE)
        self.evicted = np.zeros(4 << pages.bit_length(), np.uint32)
        self.windows = np.zeros((points, spec.window_pages), np.int32)
        self.point_stamp = np.zeros(points, np.int64)
        self.exact, self.point_kind = (np.zeros(points, np.uint8) for _ in range(2))
        self.point_saves = np.zeros(points, np.uint8)
        self.point_words = {name: np.zeros(points, np.int32) for name in POINT_WORDS}
        self.buckets = np.zeros(1 << (2 * points).bit_length(), np.int32)
        self.page_lists = np.zeros(page_kinds, LIST)
        self.point_lists = np.zeros(point_kinds * SAVE_CLASSES, LIST)
        self.page_favour = np.zeros(page_kinds, np.int64)
        self.point_favour = np.zeros((point_kinds, SAVE_CLASSES), np.int64)
        self.kind_after_use = np.arange(point_kinds, dtype=np.uint8)
        self.returns = np.zeros(page_kinds, RETURNS)
        self.uses = np.zeros(point_kinds, USES)
        self.roots = np.zeros(_FIRST_ROOTS, ROOT)
        self.removed = np.zeros(pages, np.int32)
        self._scratch = np.zeros(spec.page_size, np.int32)
        self._links = [np.zeros(n, np.int32) for n in (pages, pages, pages, pages, points, points)]
        self._pools = (full, swa, states, self.node_ids, self.point_ids)
        self.tree = self._fill(spec, page_kinds, point_kinds, end_kind)
        self.tree.replay, self.tree.has_state = replay, spec.has_state
        self.pointer = ctypes.addressof(self.tree)

    def page(self, name: str) -> np.ndarray:
        """Return the int32 array by node that the C struct calls `name`."""
        return self.words[name]

    def point(self, name: str) -> np.ndarray:
        """Return the int32 array by point that the C struct calls `name`."""
        return self.point_words[name]

    def page_links(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (newer, older) of the lists that pages stand in by kind."""
        return self._links[0], self._links[1]

    def root_links(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (newer, older) of the lists that pages stand in by namespace."""
        return self._links[2], self._links[3]

    def point_links(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (newer, older) of the lists that resume points stand in by kind."""
        return self._links[4], self._links[5]

    def add_roots(self) -> None:
        """Make room for twice as many namespaces."""
        self.roots = np.concatenate((self.roots, np.zeros(len(self.roots), ROOT)))
        self.tree.roots = address(self.roots)

    def _fill(self, spec: TreeSpec, page_kinds: int, point_kinds: int, end_kind: int) -> CTree:
        tree = CTree(spec.page_size, spec.window_pages, page_kinds, point_kinds, end_kind)
        for name, pool in zip(POOLS, self._pools, strict=True):
            setattr(tree, name, ctypes.pointer(pool.pool))
        arrays = {
            name: getattr(self, name)
            for name in (
                *(
                    "node_of",
                    "unit",
                    "point_of",
                    "roots",
                    "tokens",
                    "stamp",
                    "kind",
                    "turns",
                    "flags",
                    "trail",
                    "page_lists",
                ),
                *("page_favour", "returns", "traces", "windows", "point_stamp", "exact"),
                *("point_kind", "point_saves", "buckets", "point_lists", "point_favour"),
                "removed",
                *("kind_after_use", "uses", "evicted"),
            )
        }
        arrays |= {**self.words, **self.point_words, "scratch": self._scratch}
        for name, array in arrays.items():
            setattr(tree, name, address(array))
        links = [address(array) for array in self._links]
        tree.page_links, tree.root_links = CLinks(*links[:2]), CLinks(*links[2:4])
        tree.point_links = CLinks(*links[4:])
        tree.trace_mask = len(self.traces) - 1
        tree.evicted_mask = len(self.evicted) - 1
        tree.bucket_mask = len(self.buckets) - 1
        return tree
