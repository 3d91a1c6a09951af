"""Places of tokens in rings of SWA pages, and in the workspace of chunks."""

import torch

from jit_kernels.paged_gqa import PagedRows
from layers.steps.decode_rows import DecodeRows
from layers.steps.forward_batch import ForwardBatch
from layers.steps.window_places import windows_of_chunks, windows_of_rows
from mem_cache.spec import TreeSpec

CPU = torch.device("cpu")
TREE = TreeSpec(256, 64, window=70, has_state=False)
RINGS = torch.tensor([[7, 2], [5, 9]], dtype=torch.int32)


def test_a_decoding_row_reads_its_ring_through_a_table_from_a_border() -> None:
    rows = DecodeRows.empty(3, pages=4, window_pages=2, device=CPU)
    rows.window[:2] = RINGS
    rows.position[:2] = torch.tensor([200, 10])

    made = windows_of_rows(rows, TREE)

    # The window of 200 is [131, 201): its border is 128, the ring's first page again.
    assert made.rows.page_table.tolist() == [[7, 2, 7, 2], [5, 9, 5, 9], [0, 0, 0, 0]]
    assert made.rows.length.tolist() == [200 - 128 + 1, 11, 0]
    assert made.slots.tolist() == [2 * 64 + 200 - 192, 5 * 64 + 10, 0]
    assert made.workspace is None


def test_every_position_of_a_window_is_found_where_it_was_written() -> None:
    window, slots = 70, dict[int, int]()
    for position in range(300):
        rows = DecodeRows.empty(1, pages=4, window_pages=2, device=CPU)
        rows.window[0], rows.position[0] = RINGS[0], position
        made = windows_of_rows(rows, TREE)
        slots[position] = int(made.slots[0])
        table, first = made.rows.page_table[0], position + 1 - int(made.rows.length[0])
        for seen in range(max(0, position - window + 1), position + 1):
            page, place = divmod(seen - first, 64)
            assert int(table[page]) * 64 + place == slots[seen]


def batch(start: int, count: int, window_from: int = 0) -> ForwardBatch:
    """Return a step of a row beside one of two tokens, which leaves a point at its end."""
    zeros = torch.zeros(2, dtype=torch.int32)
    return ForwardBatch(
        input_ids=torch.zeros(count + 2, dtype=torch.int64),
        chunk_start=torch.tensor([start, 0]),
        chunk_len=torch.tensor([count, 2]),
        page_table=torch.tensor([[1, 2], [3, 0]], dtype=torch.int32),
        window=RINGS,
        ring=zeros,
        window_from=torch.tensor([window_from, 0]),
        write_from=torch.zeros(2, dtype=torch.int64),
        save_row=torch.tensor([0, 1, 1]),
        save_position=torch.tensor([start + count, 2, 2]),
        save_ring=torch.zeros(3, dtype=torch.int32),
        save_window=torch.tensor([[7, 2], [5, 9], [4, 0]], dtype=torch.int32),
        logit_tokens=torch.tensor([count - 1, count + 1]),
    )


def rows_of(count: int) -> PagedRows:
    """Return the rows of `batch` over full pages."""
    table, first = torch.zeros((2, 1), dtype=torch.int32), torch.tensor([0, count, count + 2])
    return PagedRows(table, table[:, 0], first.int(), count, (count, 2))


def test_chunks_are_laid_behind_their_windows_from_the_same_borders() -> None:
    made = windows_of_chunks(batch(200, 100), TREE, rows_of(100), CPU)
    workspace = made.workspace
    assert workspace is not None

    # [128, 300) takes three pages, [0, 2) one; tables are as wide as those of decoding rows.
    assert workspace.pages == 4
    assert made.rows.page_table.tolist() == [[0, 1, 2, 2], [3, 3, 3, 3]]
    assert made.rows.length.tolist() == [300 - 128, 2]
    assert made.slots.tolist() == [*range(72, 172), 192, 193]
    # 69 positions before 200, from the ring: [131, 192) in its first page.
    assert workspace.read_to.tolist() == [*range(131 - 128, 200 - 128)]
    ring = [*(7 * 64 + p - 128 for p in range(131, 192)), *(2 * 64 + p for p in range(8))]
    assert workspace.read_from.tolist() == ring


def test_the_newest_positions_are_saved_from_the_workspace() -> None:
    made = windows_of_chunks(batch(200, 20), TREE, rows_of(20), CPU)
    workspace = made.workspace
    assert workspace is not None
    copies = dict(zip(workspace.save_to.tolist(), workspace.save_from.tolist(), strict=True))

    # What the ring holds already stays; the other row is saved twice.
    own = {2 * 64 + p - 192: p - 128 for p in range(200, 220)}
    assert copies == own | {5 * 64: 128, 5 * 64 + 1: 129, 4 * 64: 128, 4 * 64 + 1: 129}


def test_a_replay_reads_nothing_before_its_start() -> None:
    made = windows_of_chunks(batch(200, 20, window_from=200), TREE, rows_of(20), CPU)

    assert made.workspace is not None
    assert made.workspace.read_to.tolist() == []
    assert made.rows.length.tolist() == [220 - 128, 2]
