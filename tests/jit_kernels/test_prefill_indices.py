"""Indices of a prefill chunk, against positions written out one by one."""

import pytest
import torch
from torch import Tensor

from jit_kernels.checks import ShapeError
from jit_kernels.decode_indices import PageSizes
from jit_kernels.prefill_indices import BlockList, prefill_index, prefill_slots

V4 = PageSizes(page=256, swa_page=64, window=128)


class Chunks:
    """Rows of (start, length, window_from) with tables of random pages."""

    def __init__(
        self, rows: list[tuple[int, int, int]], sizes: PageSizes, *, guesses: int = 0
    ) -> None:
        """Make the tensors; windows have room for so many guesses."""
        self.rows, self.sizes = rows, sizes
        self.start, self.length, self.window_from = torch.tensor(rows).T.contiguous()
        pages = int((self.start + self.length).max()) // sizes.page + 1
        ring = -(-(sizes.window + guesses) // sizes.swa_page)
        self.page_table = torch.randint(1, 9999, (len(rows), pages), dtype=torch.int32)
        self.window = torch.randint(1, 9999, (len(rows), ring), dtype=torch.int32)
        self.row = torch.arange(len(rows)).repeat_interleave(self.length)
        first = self.length.cumsum(0) - self.length
        self.position = torch.arange(len(self.row)) + (self.start - first)[self.row]

    def blocks(self, ratio: int) -> BlockList:
        """Return the list of the rows' blocks, end to end."""
        counts = (self.start + self.length) // ratio
        return BlockList(ratio, counts.cumsum(0) - counts, int(counts.sum()))

    def tables(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the first arguments of `prefill_slots`."""
        return self.start, self.length, self.page_table, self.window, self.window_from

    def tokens(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the first arguments of `prefill_index`."""
        return self.position, self.row, self.start, self.window_from


def workspace(chunks: Chunks, ratio: int) -> list[tuple[int, str, int]]:
    """Return what each row of the workspace is: (row, "key" or "block", position or block)."""
    span = chunks.sizes.window - 1
    result: list[tuple[int, str, int]] = []
    for row, (start, _, _) in enumerate(chunks.rows):
        result += [(row, "key", position) for position in range(start - span, start)]
    for row, (start, length, _) in enumerate(chunks.rows):
        result += [(row, "key", position) for position in range(start, start + length)]
    for row, (start, length, _) in enumerate(chunks.rows):
        result += [(row, "block", block) for block in range((start + length) // max(ratio, 1))]
    return result


@pytest.mark.parametrize("ratio", [0, 4, 128])
def test_a_token_names_its_window_and_the_blocks_before_it(
    device: torch.device, ratio: int
) -> None:
    chunks = Chunks([(300, 30, 250), (0, 140, 0)], V4)
    columns = {0: 0, 4: 96, 128: 3}[ratio]
    position, row, start, window_from = chunks.tokens()

    index, lengths = prefill_index(
        position,
        row,
        start,
        window_from=window_from,
        window=128,
        columns=columns,
        blocks=chunks.blocks(ratio) if ratio else None,
    )

    held = workspace(chunks, ratio)
    assert index.shape[1] % 128 == 0
    for token in range(len(row)):
        mine, at = int(row[token]), int(position[token])
        lowest = max(0, int(window_from[mine]))
        want: list[tuple[int, str, int] | None] = [
            (mine, "key", seen) if seen >= lowest else None for seen in range(at - 127, at + 1)
        ]
        seen = min(columns, (at + 1) // ratio) if ratio else 0
        want += [(mine, "block", block) for block in range(seen)]
        assert int(lengths[token]) == len(want)
        want += [None] * (index.shape[1] - len(want))
        assert [None if place < 0 else held[place] for place in index[token].tolist()] == want


def test_columns_of_chosen_blocks_are_left_open(device: torch.device) -> None:
    chunks = Chunks([(30, 4, 0)], V4)
    position, row, start, window_from = chunks.tokens()

    index, lengths = prefill_index(
        *(position, row, start),
        window_from=window_from,
        window=128,
        columns=6,
        blocks=chunks.blocks(4),
        chosen=True,
    )

    assert bool((index[:, 128:] == -1).all())
    assert lengths.tolist() == [134, 134, 134, 134]


def test_slots_are_those_of_positions_and_blocks(device: torch.device) -> None:
    chunks = Chunks([(300, 30, 250), (0, 140, 0), (65, 2, -5)], V4)
    start, length, page_table, window, window_from = chunks.tables()

    old, c128, c4 = prefill_slots(
        *(start, length, page_table, window),
        window_from=window_from,
        sizes=V4,
        blocks=(chunks.blocks(128), chunks.blocks(4)),
    )

    want: list[int] = []
    for row, (begin, _, readable) in enumerate(chunks.rows):
        for at in range(begin - 127, begin):
            page = int(window[row, at // 64 % 2])
            want.append(page * 64 + at % 64 if at >= max(0, readable) else -1)
    assert old.tolist() == want
    for slots, ratio in ((c128, 128), (c4, 4)):
        per_page = 256 // ratio
        want = []
        for row, (begin, count, _) in enumerate(chunks.rows):
            for block in range((begin + count) // ratio):
                page = int(page_table[row, block // per_page])
                want.append(page * per_page + block % per_page)
        assert slots.tolist() == want


def test_sizes_that_do_not_fit_are_refused() -> None:
    chunks = Chunks([(3, 2, 0)], V4)
    position, row, start, window_from = chunks.tokens()

    with pytest.raises(ShapeError, match="5 columns of blocks, and no blocks"):
        prefill_index(
            *(position, row, start), window_from=window_from, window=128, columns=5, blocks=None
        )
    with pytest.raises(ShapeError, match=r"chunk_len has shape \[2\], expected \[1\]"):
        prefill_slots(
            *(start, torch.ones(2, dtype=torch.int64), chunks.page_table, chunks.window),
            window_from=window_from,
            sizes=V4,
            blocks=(),
        )
    with pytest.raises(ShapeError, match=r"blocks of \[3\] in pages of 256"):
        prefill_slots(
            *(start, chunks.length, chunks.page_table, chunks.window),
            window_from=window_from,
            sizes=V4,
            blocks=(BlockList(3, start, 0),),
        )
