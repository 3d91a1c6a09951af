"""Places of tokens in pages, of chunks and of decoding rows."""

import torch

from layers.steps.decode_rows import DecodeRows
from layers.steps.forward_batch import ForwardBatch
from layers.steps.page_places import of_chunks, of_rows
from mem_cache.spec import TreeSpec

CPU = torch.device("cpu")
TREE = TreeSpec(16, 16, window=0, has_state=False)


def test_chunks_write_where_their_pages_are_and_read_up_to_their_ends() -> None:
    zeros = torch.zeros(2, dtype=torch.int64)
    none = torch.zeros((2, 1), dtype=torch.int32)
    batch = ForwardBatch(
        input_ids=torch.tensor([5, 6, 7, 8]),
        chunk_start=torch.tensor([15, 2]),
        chunk_len=torch.tensor([3, 1]),
        page_table=torch.tensor([[4, 9], [3, 0]], dtype=torch.int32),
        window=none,
        ring=none[:, 0],
        window_from=zeros,
        # The row's first token is in its page already.
        write_from=torch.tensor([16, 0]),
        save_row=zeros,
        save_position=torch.tensor([18, 3]),
        save_ring=none[:, 0],
        save_window=none,
        logit_tokens=torch.tensor([2, 3]),
    )

    made = of_chunks(batch, TREE, CPU)

    assert made.input_ids.tolist() == [5, 6, 7, 8]
    assert made.position.tolist() == [15, 16, 17, 2]
    assert made.slots.tolist() == [0, 9 * 16, 9 * 16 + 1, 3 * 16 + 2]
    assert made.rows.length.tolist() == [18, 3]
    assert made.rows.first is not None
    assert (made.rows.first.tolist(), made.rows.most) == ([0, 3, 4], 3)
    assert made.logit_tokens.tolist() == [2, 3]
    x = torch.ones(4, 2)
    x[3, 1] = torch.nan
    assert made.finite_rows(x).tolist() == [True, False]


def test_rows_that_pad_a_batch_read_nothing_and_write_to_page_0() -> None:
    rows = DecodeRows.empty(3, pages=2, window_pages=1, device=CPU)
    rows.page_table[:2] = torch.tensor([[7, 2], [5, 0]])
    rows.position[:2] = torch.tensor([17, 0])

    made = of_rows(rows, TREE)

    assert made.slots.tolist() == [2 * 16 + 1, 5 * 16, 0]
    assert made.rows.length.tolist() == [18, 1, 0]
    assert (made.rows.first, made.rows.most) == (None, 1)
    assert made.position.tolist() == [17, 0, 0]
