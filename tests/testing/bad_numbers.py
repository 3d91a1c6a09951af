"""What makes rows of a token runner not finite: tokens that they feed, pages that they read."""

import numpy as np

from tests.testing.plan_arrays import PlanArrays


class BadNumbers:
    """Which rows of steps are finite.

    tokens  the numbers of a row that feeds one of them are not finite
    pages   nor are those of a row that has one of them before its chunk; until it is written anew
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self.tokens: set[int] = set()
        self.pages: set[int] = set()

    def copied(self, source: int, destination: int) -> None:
        """Note that a page was copied."""
        self.pages.discard(destination)
        if source in self.pages:
            self.pages.add(destination)

    def finite(self, plan: PlanArrays, ids: np.ndarray) -> np.ndarray:
        """Return which rows are finite, [n] bool; `ids` [T] are the tokens that they feed."""
        found: list[bool] = []
        chunks = np.split(ids, np.cumsum(plan.chunk_len)[:-1])
        for fed, pages, start in zip(chunks, plan.page_table, plan.chunk_start, strict=True):
            read = pages[: -(-int(start) // self._page_size)]
            found.append(
                self.tokens.isdisjoint(fed.tolist()) and self.pages.isdisjoint(read.tolist())
            )
        return np.array(found, dtype=bool)
