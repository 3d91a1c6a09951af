"""A ledger beside the adapter, never timed: what each page holds, and who owns it.

Every row writes its tokens into the pages that it was given, as the network would write records.
A hit is true if the pages it names hold exactly the prompt's tokens, page by page, written by
whoever. A page has one owner: the tree, or one row.
"""

import numpy as np

from tests.bench.cache.adapter import PAGE, Row, Umbra


class LedgerFault(AssertionError):
    """A page holds other tokens than it was matched for, or has two owners."""


class Ledger(Umbra):
    """The adapter, with what is written written down.

    hits_checked  pages of hits that were compared
    """

    name = "umbra-ledger"

    def __init__(self, full_pages: int, swa_pages: int, max_running: int = 32) -> None:
        super().__init__(full_pages, swa_pages, max_running)
        self.written = np.full((self.full.capacity + 1, PAGE), -1, np.int32)
        self.owner = np.zeros(self.full.capacity + 1, np.int64)
        self.hits_checked = 0

    def lock(self, row: Row) -> None:
        super().lock(row)
        self._compare(row.match.pages, row.toks, row.match.full_tokens)

    def alloc(self, row: Row, upto: int, decode: bool = False) -> None:
        held = row.pages_held
        super().alloc(row, upto, decode)
        for page in row.pages[held : row.pages_held].tolist():
            self._own(page, row)
        full = row.match.full_tokens
        if held == row.match.full_tokens // PAGE < row.pages_held and full % PAGE:
            # The copy of the partial page that the match ended in.
            source, mine = row.match.pages[-1], row.pages[held]
            self.written[mine, : full % PAGE] = self.written[source, : full % PAGE]

    def insert(self, row: Row, upto: int, finished: bool) -> None:
        self._write(row, row.toks[:upto])
        own = row.pages[row.pages_shared : upto // PAGE].copy()
        super().insert(row, upto, finished)
        self.owner[own] = 0
        self._compare(row.pages[: row.pages_shared], row.toks, row.pages_shared * PAGE)

    def unlock(self, row: Row) -> None:
        self.owner[row.pages[row.pages_shared : row.pages_held]] = 0
        super().unlock(row)

    def _own(self, page: int, row: Row) -> None:
        if self.owner[page] or self.cache.arrays.node_of[page]:
            raise LedgerFault(f"page {page} was handed to row {row.row + 1} and has an owner")
        self.owner[page] = row.row + 1
        self.written[page] = -1

    def _write(self, row: Row, tokens: np.ndarray) -> None:
        """Write a row's tokens behind what it matched, into pages that must be its own."""
        first = row.pages_shared
        for number in range(first, -(-len(tokens) // PAGE)):
            page = int(row.pages[number])
            if self.owner[page] != row.row + 1:
                raise LedgerFault(f"row {row.row + 1} writes page {page} of {self.owner[page]}")
            part = tokens[number * PAGE : (number + 1) * PAGE]
            self.written[page, : len(part)] = part

    def _compare(self, pages: np.ndarray, tokens: np.ndarray, count: int) -> None:
        held = self.written[pages].reshape(-1)[:count]
        if not np.array_equal(held, tokens[:count]):
            wrong = int((held != tokens[:count]).argmax())
            raise LedgerFault(f"position {wrong} of a hit of {count} tokens holds another token")
        self.hits_checked += len(pages)
