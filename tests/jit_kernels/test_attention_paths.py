"""The ops of decode and of prefill put together: both see the same keys in the same order."""

import pytest
import torch
from torch import Tensor

from jit_kernels.copy_records import copy_records
from jit_kernels.decode_indices import PageSizes, decode_indices
from jit_kernels.kv_workspace import RecordSet, fill_workspace
from jit_kernels.paged_attention import PagedKeys, paged_attention
from jit_kernels.paged_rows import PageLayout
from jit_kernels.paged_rows.reference import store_rows
from jit_kernels.prefill_indices import BlockList, prefill_index, prefill_slots
from jit_kernels.sparse_prefill import sparse_prefill
from jit_kernels.translate_blocks import place_blocks, translate_blocks
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.packed_pages import BY_64, poisoned_pages, some_records

V4 = PageSizes(page=256, swa_page=64, window=128)
SCALE = 512**-0.5
# One sequence: positions before the chunk, in it, its full pages and its ring of SWA pages.
START, COUNT = 390, 140
PAGES = [3, 1, 4]
RING = [2, 5]
CHOSEN = 24


class Sequence:
    """Keys of a sequence, its blocks in their pages, and queries of a chunk."""

    def __init__(self) -> None:
        """Draw everything; blocks lie where their pages say."""
        end = START + COUNT
        self.keys = some_records(end)
        self.q = torch.randn(COUNT, 5, 512).bfloat16()
        self.sink = torch.randn(5)
        self.table = torch.tensor([PAGES], dtype=torch.int32)
        self.position = torch.arange(START, end)
        self.pools = {ratio: self._pool(ratio, end) for ratio in (4, 128)}
        self.visible = (self.position + 1) // 4
        wanted = torch.rand(COUNT, end // 4) - (torch.arange(end // 4) >= self.visible[:, None]) * 2
        self.chosen = wanted.topk(CHOSEN, 1)[1].sort(1)[0]

    def _pool(self, ratio: int, end: int) -> Tensor:
        per_page = 256 // ratio
        block = torch.arange(end // ratio)
        slots = torch.tensor(PAGES)[block // per_page] * per_page + block % per_page
        pages = poisoned_pages(8, BY_64)
        store_rows(pages, slots, some_records(len(block)), BY_64)
        return pages

    def window(self, end: int) -> Tensor:
        """Return SWA pages that hold the window's keys before `end`."""
        pages = poisoned_pages(6, BY_64)
        position = torch.arange(max(0, end - 128), end)
        slots = torch.tensor(RING)[position // 64 % 2] * 64 + position % 64
        store_rows(pages, slots, self.keys[position], BY_64)
        return pages

    def decode(self, nth: int, ratio: int) -> Tensor:
        """Return the attention of one position, as a decode step finds its keys."""
        position, one = self.position[nth : nth + 1], slice(nth, nth + 1)
        ring = torch.tensor([RING], dtype=torch.int32)
        made = decode_indices(
            *(position, self.table, ring), window_from=None, sizes=V4, c128_columns=64
        )
        window = PagedKeys(self.window(int(position) + 1), BY_64, made.window_slots)
        extra = None
        if ratio == 128:
            extra = PagedKeys(self.pools[128], BY_64, made.c128_slots, made.c128_lengths)
        elif ratio == 4:
            slots = torch.empty((1, 64), dtype=torch.int32)
            translate_blocks(self.chosen[one], self.table, slots, page_blocks=64)
            extra = PagedKeys(self.pools[4], BY_64, slots)
        return paged_attention(self.q[one], window, extra, sink=self.sink, scale=SCALE)

    def prefill(self, ratio: int) -> Tensor:
        """Return the attention of the chunk."""
        start, length = torch.tensor([START]), torch.tensor([COUNT])
        none, row = torch.tensor([0]), torch.zeros(COUNT, dtype=torch.int64)
        ring = torch.tensor([RING], dtype=torch.int32)
        lists = (BlockList(ratio, none, (START + COUNT) // ratio),) if ratio else ()
        old, *blocks = prefill_slots(
            *(start, length, self.table, ring), window_from=none, sizes=V4, blocks=lists
        )
        index, lengths = prefill_index(
            *(self.position, row, start),
            window_from=none,
            window=128,
            columns={0: 0, 4: CHOSEN, 128: 4}[ratio],
            blocks=lists[0] if lists else None,
            chosen=ratio == 4,
        )
        if ratio == 4:
            place_blocks(self.chosen, none + 127 + COUNT, index[:, 128:], row=row)
        keys = torch.full((600, 512), torch.nan).bfloat16()
        fresh, layout = poisoned_pages(3, BY_64), BY_64
        order = torch.arange(COUNT)
        store_rows(fresh, order, self.keys[START:], BY_64)
        sets = [RecordSet(self.window(START), BY_64, old)]
        sets.append(RecordSet(fresh, layout, order.to(torch.int32)))
        sets += [RecordSet(self.pools[ratio], BY_64, slots) for slots in blocks]
        fill_workspace(keys, sets)
        return sparse_prefill(self.q, keys, index, sink=self.sink, scale=SCALE, lengths=lengths)


@pytest.mark.parametrize("ratio", [0, 4, 128])
def test_a_chunk_attends_what_its_positions_attend_one_by_one(
    device: torch.device, ratio: int
) -> None:
    sequence = Sequence()

    got = sequence.prefill(ratio)

    assert not got.isnan().any()
    for nth in (0, 1, 63, 127, 128, COUNT - 1):
        want = sequence.decode(nth, ratio)
        assert_close(got[nth : nth + 1], want, Bounds(atol=1e-2, rtol=2e-2), what=f"token {nth}")


def test_a_chunk_in_pages_of_the_step_decodes_to_its_own_bits(device: torch.device) -> None:
    """What a deterministic prefill does: old and own keys in pages, named by the same index."""
    sequence = Sequence()
    start, none = torch.tensor([START]), torch.tensor([0])
    ring = torch.tensor([RING], dtype=torch.int32)
    (old,) = prefill_slots(
        *(start, torch.tensor([COUNT]), sequence.table, ring),
        window_from=none,
        sizes=V4,
        blocks=(),
    )
    index, _ = prefill_index(
        *(sequence.position, torch.zeros(COUNT, dtype=torch.int64), start),
        window_from=none,
        window=128,
        columns=0,
        blocks=None,
    )
    layout: PageLayout = BY_64
    step = poisoned_pages(5, layout)
    places = torch.arange(127, dtype=torch.int32)
    copy_records(RecordSet(sequence.window(START), layout, old), RecordSet(step, layout, places))
    store_rows(step, torch.arange(COUNT) + 127, sequence.keys[START:], layout)

    got = paged_attention(
        *(sequence.q, PagedKeys(step, layout, index), None),
        sink=sequence.sink,
        scale=SCALE,
        deterministic=True,
    )

    for nth in (0, 100, COUNT - 1):
        one = slice(nth, nth + 1)
        pages = sequence.window(START + nth + 1)
        made = decode_indices(
            *(sequence.position[one], sequence.table, ring),
            window_from=None,
            sizes=V4,
            c128_columns=64,
        )
        want = paged_attention(
            *(sequence.q[one], PagedKeys(pages, layout, made.window_slots), None),
            sink=sequence.sink,
            scale=SCALE,
            deterministic=True,
        )
        assert_same_bits(got[one], want, what=f"token {nth}")
