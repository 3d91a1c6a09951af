"""Sequences by their prefixes, and a running request that is made of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mem_cache.spec import TreeSpec
from mem_cache.tree.handles import Lock
from mem_cache.tree.radix import ShadowRadixCache
from tests.testing.tree_view import view_pages


class Prefixes:
    """Numbers for prefixes: equal numbers if and only if namespace and tokens are equal."""

    def __init__(self) -> None:
        self._next: dict[tuple[object, int], int] = {}
        self.parent: dict[int, int] = {}

    def ids(self, namespace: str, tokens: Sequence[int]) -> list[int]:
        """Return the numbers of tokens[:0], tokens[:1], ... tokens[:n]."""
        top = self._next.setdefault((namespace, -1), len(self._next))
        return self.below(top, tokens)

    def below(self, prefix: int, tokens: Sequence[int]) -> list[int]:
        """Return the number given, and those of the prefixes that the tokens make of it."""
        last, found = prefix, [prefix]
        for token in tokens:
            number = self._next.setdefault((last, int(token)), len(self._next))
            self.parent[number] = last
            last = number
            found.append(last)
        return found


@dataclass(eq=False)
class Row:
    """A running request, as far as a cache can tell.

    prompt_tokens  how many of its tokens were given
    published      how many the tree has, under this row's lock
    own            indices of the pages of `table` that it has a reference on
    window         whole SWA pages that it shares with its points, by their number
    """

    namespace: str
    lock: Lock
    prompt_tokens: int
    tokens: list[int]
    ids: list[int]
    table: list[int]
    published: int
    own: set[int] = field(default_factory=set[int])
    window: dict[int, int] = field(default_factory=dict[int, int])

    def window_page(self, spec: TreeSpec, number: int, position: int) -> dict[int, int]:
        """Return what the place of an SWA page holds at `position`: itself, over one before it."""
        size = spec.swa_page_size
        content: dict[int, int] = {}
        for page in (number - spec.window_pages, number):
            for p in range(max(0, page * size), min((page + 1) * size, position)):
                content[p % size] = self.ids[p + 1]
        return content


def read_prefixes(cache: ShadowRadixCache, prefixes: Prefixes) -> tuple[set[int], dict[int, int]]:
    """Return the numbers of all prefixes that a tree has, and the point of each that has one."""
    published: set[int] = set()
    points: dict[int, int] = {}
    ends: dict[int, int] = {}
    for view in view_pages(cache):
        top = ends[view.parent] if view.parent > 0 else prefixes.ids(view.namespace, ())[0]
        ids = prefixes.below(top, view.tokens)
        published.update(ids[1:])
        ends[view.page] = ids[-1]
        for position, point in view.points:
            number = ids[position - view.start]
            assert number not in points
            points[number] = point
    return published, points
