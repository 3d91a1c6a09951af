"""Buffers of decoding rows."""

import torch

from layers.steps.decode_rows import DecodeRows


def test_empty_rows_pad_a_batch() -> None:
    rows = DecodeRows.empty(3, pages=5, window_pages=2, device=torch.device("cpu"))

    assert rows.position.tolist() == [-1] * 3
    assert rows.input_ids.tolist() == [0] * 3
    assert (rows.input_ids.dtype, rows.position.dtype) == (torch.int64, torch.int64)
    for table, shape in ((rows.page_table, (3, 5)), (rows.window, (3, 2)), (rows.ring, (3,))):
        assert (table.shape, table.dtype) == (shape, torch.int32)
        assert not table.any(), "unit 0 is what padding may write"
