"""Which namespace has which root of the tree."""

import numpy as np

from mem_cache.tree.arrays import TreeArrays


class Namespaces:
    """Names of the roots of a tree; a root that holds nothing is given to the next name.

    roots  index of each name's root
    """

    def __init__(self, arrays: TreeArrays) -> None:
        self.roots: dict[str, int] = {}
        self._arrays = arrays
        self.clear()

    def clear(self) -> None:
        """Forget all names; the tree must be empty."""
        self.roots = {}
        self._free = list(range(len(self._arrays.roots) - 1, -1, -1))

    def tokens(self) -> dict[str, int]:
        """Count the tokens that each namespace holds, where it holds any."""
        held = self._arrays.roots["tokens"]
        return {name: int(held[root]) for name, root in self.roots.items() if held[root]}

    def node(self, name: str) -> int:
        """Return the root of a namespace as a node, below 0; make it if there is none."""
        root = self.roots.get(name)
        if root is None:
            if not self._free:
                self._find_free()
            root = self.roots[name] = self._free.pop()
        return -1 - root

    def _find_free(self) -> None:
        """Forget namespaces that hold nothing; make room for more if that are few."""
        roots = self._arrays.roots
        unused = (roots["pages"] == 0) & (roots["locks"] == 0)
        self.roots = {name: root for name, root in self.roots.items() if not unused[root]}
        self._free = np.flatnonzero(unused)[::-1].tolist()
        if len(self._free) * 2 < len(roots):
            self._free = list(range(2 * len(roots) - 1, len(roots) - 1, -1)) + self._free
            self._arrays.add_roots()
