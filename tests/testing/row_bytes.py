"""Bytes of a row that may still be read at its length, and their removal from everything else."""

import torch
from torch import Tensor

from jit_kernels.paged_rows import PageLayout, gather_rows, store_rows
from layers.models.deepseek_v4.pool_spec import POINT_BANKS, POOLED_TOKENS
from tests.testing.direct import Direct, Row

__all__ = ["assert_same_bytes", "held", "poison_rest"]


def held(direct: Direct, row: Row) -> dict[str, Tensor]:
    """Return every byte that the rest of a row's computation can depend on, in its own order."""
    pools, (window, c4, c128, rows, banks) = direct.pools, _places(direct, row)
    return {
        "window": _rows(pools.swa, window, pools.swa_layout),
        "c4": _rows(pools.c4, c4, pools.c4_layout),
        "indexer": _rows(pools.indexer, c4, pools.indexer_layout),
        "c128": _rows(pools.c128, c128, pools.c128_layout),
        "c4_state": pools.c4_state[:, row.ring, rows].cpu(),
        "c128_state": pools.c128_state[:, row.ring, banks].cpu(),
    }


def poison_rest(direct: Direct, row: Row) -> None:
    """Overwrite all that a row holds but `held` with bytes that are NaN in every format."""
    pools, tree, kept = direct.pools, direct.tree, held(direct, row)
    window, c4, c128, rows, banks = _places(direct, row)

    def every(units: list[int], each: int) -> list[int]:
        return [unit * each + i for unit in units for i in range(each)]

    pages = [*row.window.values()]
    for pool, layout, units, each, slots, name in (
        (pools.swa, pools.swa_layout, pages, tree.swa_page_size, window, "window"),
        (pools.c4, pools.c4_layout, row.pages, tree.page_size // 4, c4, "c4"),
        (pools.indexer, pools.indexer_layout, row.pages, tree.page_size // 4, c4, "indexer"),
        (pools.c128, pools.c128_layout, row.pages, tree.page_size // 128, c128, "c128"),
    ):
        for layer, unit_pages in enumerate(pool):
            whole = _index(every(units, each), pool.device)
            nans = torch.full((len(whole), layout.row_bytes), 0xFF, dtype=torch.uint8)
            store_rows(unit_pages, whole, nans.to(pool.device), layout)
            mine = kept[name][layer].to(pool.device)
            store_rows(unit_pages, _index(slots, pool.device), mine, layout)
    for state, entries, name in (
        (pools.c4_state, rows, "c4_state"),
        (pools.c128_state, banks, "c128_state"),
    ):
        state[:, row.ring] = torch.nan
        state[:, row.ring, entries] = kept[name].to(state.device)


def assert_same_bytes(
    got: dict[str, Tensor], want: dict[str, Tensor], *, what: str = "row"
) -> None:
    """Compare what two rows hold, to the bit."""
    for name, tensor in want.items():
        same = torch.equal(got[name].view(torch.uint8), tensor.view(torch.uint8))
        assert same, f"{what}: {name} differs"


def _places(direct: Direct, row: Row) -> tuple[list[int], ...]:
    """Return SWA, C4 and C128 slots, state rows and banks that may be read, by position."""
    tree, spec, at = direct.tree, direct.spec, row.done
    window = [
        row.window[p // tree.swa_page_size % tree.window_pages] * tree.swa_page_size
        + p % tree.swa_page_size
        for p in range(max(0, at - tree.window), at)
    ]
    per_page = {ratio: tree.page_size // ratio for ratio in (4, 128)}
    c4, c128 = (
        [row.pages[b // each] * each + b % each for b in range(at // ratio)]
        for ratio, each in per_page.items()
    )
    rows = [p % spec.state_rows for p in range(max(0, at - POOLED_TOKENS), at)]
    banks = [p % spec.state_banks for p in range(max(0, at - POINT_BANKS), at)]
    return window, c4, c128, rows, banks


def _rows(pool: Tensor, slots: list[int], layout: PageLayout) -> Tensor:
    index = _index(slots, pool.device)
    return torch.stack([gather_rows(pages, index, layout) for pages in pool]).cpu()


def _index(slots: list[int], device: torch.device) -> Tensor:
    return torch.tensor(slots, dtype=torch.int64, device=device)
