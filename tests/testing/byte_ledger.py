"""What every pool holds for every position of every prefix, and that it is always the same bytes.

A position's bytes may depend on its tokens up to there and on nothing else: not on the chunks,
not on the company, not on what was reused. So the first sight of a prefix is kept, and every later
one, of whatever request in whatever scheduler, must be equal to it.
"""

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from jit_kernels.paged_rows import PageLayout, gather_rows
from layers.models.deepseek_v4.pools import KvPools
from runtime.scheduler.request import Request
from runtime.scheduler.residency import Residency

FIRST_ROWS = 1024


@dataclass
class _Seen:
    """Bytes [prefixes, width] of one pool; `known` says for which prefixes."""

    width: int
    rows: np.ndarray = field(init=False)
    known: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.rows = np.zeros((FIRST_ROWS, self.width), np.uint8)
        self.known = np.zeros(FIRST_ROWS, np.bool_)

    def note(self, prefixes: np.ndarray, got: np.ndarray) -> tuple[int, np.ndarray]:
        """Keep what is new; return how many were known, and which of these differ."""
        while int(prefixes.max()) >= len(self.known):
            self.rows = np.concatenate([self.rows, np.zeros_like(self.rows)])
            self.known = np.concatenate([self.known, np.zeros_like(self.known)])
        old = self.known[prefixes]
        different = (self.rows[prefixes] != got).any(1) & old
        self.rows[prefixes[~old]] = got[~old]
        self.known[prefixes[~old]] = True
        return int(old.sum()), np.flatnonzero(different)


class ByteLedger:
    """Compares rows of schedulers of one model, with one another and over time.

    compared  positions per pool that were seen before and had the same bytes
    """

    def __init__(self) -> None:
        self.compared: dict[str, int] = {}
        self._seen: dict[str, _Seen] = {}
        # (prefix, token) -> longer prefix: numbers that stand for whole prefixes, exactly.
        self._longer: dict[tuple[int, int], int] = {}
        # By residency, not by its address, which another one may have later.
        self._paths: WeakKeyDictionary[Residency, dict[int, list[int]]] = WeakKeyDictionary()

    def look(self, pools: KvPools, residency: Residency, request: Request) -> None:
        """Hold everything that the rest of a running request can depend on against the ledger.

        A replay's window and ring are looked at once they are meant to be exact. Raises
        AssertionError with pool and position at the first difference.
        """
        at = request.committed
        if not at:
            return
        table, row = residency.table, request.row
        prefixes = np.array(self._path(residency, request)[:at])
        page = torch.from_numpy(table.page_table[row].astype(np.int64))
        blocks, spans = torch.arange(at // 4), torch.arange(at // 128)
        c4 = page[blocks // 64] * 64 + blocks % 64
        self._hold("c4", prefixes[3::4], _records(pools.c4, c4, pools.c4_layout))
        self._hold("indexer", prefixes[3::4], _records(pools.indexer, c4, pools.indexer_layout))
        c128 = page[spans // 2] * 2 + spans % 2
        self._hold("c128", prefixes[127::128], _records(pools.c128, c128, pools.c128_layout))
        if at < request.holding.exact_from:
            return
        tree, spec, ring = residency.spec, pools.spec, int(table.state[row])
        window = torch.from_numpy(table.window[row].astype(np.int64))
        # One short of a window and of a ring: the next position takes the oldest one's place.
        near = torch.arange(max(0, at - tree.window + 1), at)
        swa = window[near // tree.swa_page_size % tree.window_pages] * tree.swa_page_size
        slots = swa + near % tree.swa_page_size
        self._hold("swa", prefixes[near.numpy()], _records(pools.swa, slots, pools.swa_layout))
        rows = torch.arange(max(0, at - 7), at)
        self._hold(
            "c4_state",
            prefixes[rows.numpy()],
            _states(pools.c4_state, ring, rows % spec.state_rows),
        )
        last = torch.arange(at - 1, at)
        self._hold(
            "c128_state",
            prefixes[last.numpy()],
            _states(pools.c128_state, ring, last % spec.state_banks),
        )

    def _path(self, residency: Residency, request: Request) -> list[int]:
        """Return the number of each prefix of a request's tokens, shortest first."""
        path = self._paths.setdefault(residency, {}).setdefault(request.id, [])
        for token in request.tokens[len(path) : request.total].tolist():
            key = (path[-1] if path else -1, token)
            path.append(self._longer.setdefault(key, len(self._longer)))
        return path

    def _hold(self, pool: str, prefixes: np.ndarray, got: np.ndarray) -> None:
        if not got.size:
            return
        seen = self._seen.setdefault(pool, _Seen(got.shape[1]))
        known, different = seen.note(prefixes, got)
        assert not len(different), (
            f"{pool}: other bytes than before for entry {different[0]} of {len(prefixes)} "
            f"({len(different)} differ)"
        )
        self.compared[pool] = self.compared.get(pool, 0) + known


def _records(pool: Tensor, slots: Tensor, layout: PageLayout) -> np.ndarray:
    """Return [slots, bytes of all layers]."""
    each = [gather_rows(pages, slots, layout) for pages in pool]
    return np.concatenate([rows.flatten(1).view(torch.uint8).numpy() for rows in each], 1)


def _states(pool: Tensor, ring: int, index: Tensor) -> np.ndarray:
    """Return [index, bytes of all layers] of one ring."""
    rows = pool[:, ring, index].transpose(0, 1).flatten(1).contiguous()
    return rows.view(torch.uint8).numpy()
