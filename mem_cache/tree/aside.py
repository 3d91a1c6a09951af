"""Removes pages that a request may have spoilt from a tree: no match finds them any more."""

import numpy as np

from mem_cache.tree.core.binding import library
from mem_cache.tree.handles import Lock
from mem_cache.tree.radix import ShadowRadixCache

__all__ = ["below", "only_of", "set_aside", "top_of"]


def set_aside(cache: ShadowRadixCache, node: int) -> int:
    """Hide a page, and all pages below it, from matches; return how many pages that are.

    Unlocked ones are evicted now, the others like any page later. Locks stay valid, and their
    owners may add pages below. A node that has left the tree, or is hidden, is left as it is.
    """
    core, tree = library(), cache.arrays.pointer
    if core.tree_set_aside(tree, node) <= 0:
        return 0
    pages = below(cache, node)
    for page in reversed(pages):
        core.tree_drop(tree, page)
    return len(pages)


def below(cache: ShadowRadixCache, node: int) -> list[int]:
    """Return a page and all that follow it, each behind the one before it."""
    parent, children = cache.arrays.page("parent"), cache.arrays.page("children")
    found, level = [node], np.array([node])
    while children[level].any():
        level = np.flatnonzero(np.isin(parent, level))
        found += level.tolist()
    return found


def only_of(cache: ShadowRadixCache, lock: Lock, *, first: int) -> int:
    """Return the topmost page on a lock's path that it alone protects; 0 if there is none.

    first  pages before this one do not count
    """
    arrays, top = cache.arrays, 0
    parent, number, guards = arrays.page("parent"), arrays.page("number"), arrays.page("guards")
    node = lock.node if lock.node > 0 and arrays.page("locks")[lock.node] == 1 else 0
    while node > 0 and guards[node] == 1 and number[node] >= first:
        top, node = node, int(parent[node])
    return top


def top_of(cache: ShadowRadixCache, node: int) -> int:
    """Return the first page of the path to `node`; 0 if that is a root."""
    parent, top = cache.arrays.page("parent"), 0
    while node > 0:
        top, node = node, int(parent[node])
    return top
