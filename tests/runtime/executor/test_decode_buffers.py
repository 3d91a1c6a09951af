"""What decode steps read: at fixed places, padded, fed from the step before."""

import dataclasses

import numpy as np
import pytest
import torch

from runtime.executor.decode_buffers import DecodeBuffers
from runtime.executor.line_tables import LineTables
from runtime.executor.plan_rows import PlanRows
from tests.testing.fused_rig import DEVICE
from tests.testing.plans import PlannedRow, packed_rows

PAGES, WINDOW, PAGE_SIZE = 6, 2, 256


def buffers(rows: int = 20) -> DecodeBuffers:
    return DecodeBuffers(rows, pages=PAGES, window_pages=WINDOW, device=DEVICE)


def tables(lines: int = 20) -> LineTables:
    """Tables of random numbers."""
    draw = np.random.default_rng(lines)
    made = LineTables(lines, pages=PAGES, window_pages=WINDOW)
    for table in (made.pages, made.window, made.state):
        table[...] = draw.integers(1, 99, size=table.shape)
    return made


def step(count: int, *, columns: int = 3, seed: int = 0, lines: int = 20) -> PlanRows:
    """Rows of a decode step, of random lines and numbers; the longest has so many pages."""
    draw = np.random.default_rng(seed)
    line = draw.permutation(lines)[:count].tolist()
    start = draw.integers(1, PAGE_SIZE * columns, size=count).tolist()
    start[-1] = PAGE_SIZE * columns - 1
    tokens = draw.integers(1, 500, size=count).tolist()
    rows = zip(line, start, tokens, strict=True)
    return PlanRows.of(packed_rows([PlannedRow(n, p, [token]) for n, p, token in rows]))


def taken_from_device(rows: PlanRows, which: list[int]) -> PlanRows:
    """Return rows, some of whose tokens only the device has."""
    from_device, ids = rows.from_device.copy(), rows.ids.copy()
    from_device[which], ids[which] = 1 + np.arange(len(which)) % 2, 0
    return dataclasses.replace(rows, from_device=from_device, ids=ids)


def test_rows_are_filled_in_and_the_rest_is_padding() -> None:
    made, where = buffers(), tables()
    for seed, count in enumerate((5, 2, 20, 1, 7, 3)):
        columns = 1 + seed
        given = step(count, columns=columns, seed=seed)

        made.fill(given, where, page_size=PAGE_SIZE)

        rows, line = made.first(20), given.line
        assert rows.input_ids[:count].tolist() == given.ids.tolist()
        assert rows.position.tolist() == [*given.start.tolist(), *[-1] * (20 - count)]
        assert rows.page_table[:count, :columns].tolist() == where.pages[line, :columns].tolist()
        assert rows.window[:count].tolist() == where.window[line].tolist()
        assert rows.ring.tolist() == [*where.state[line].tolist(), *[0] * (20 - count)]
        assert not rows.window[count:].any()
        assert not rows.input_ids[count:].any()


def test_inputs_stay_where_they_are_and_have_the_types_of_the_contract() -> None:
    made, where = buffers(), tables()
    rows = made.first(8)
    places: set[tuple[int, ...]] = set()
    for seed in range(4):
        made.fill(step(3, seed=seed), where, page_size=PAGE_SIZE)
        rows = made.first(8)
        parts = {field.name: getattr(rows, field.name) for field in dataclasses.fields(rows)}
        places.add(tuple(part.data_ptr() for part in parts.values()))
        for name, part in parts.items():
            wide = name in ("input_ids", "position")
            assert part.dtype == (torch.int64 if wide else torch.int32), name
            assert part.is_contiguous()
            assert part.data_ptr() % 16 == 0, name

    assert len(places) == 1
    assert rows.page_table.shape == (8, PAGES)


def test_a_row_gets_the_token_that_was_sampled_last_for_its_line() -> None:
    made = buffers()
    made.last.copy_(torch.arange(100, 132, device=DEVICE))
    plain = step(4)

    made.fill(taken_from_device(plain, [0, 2, 3]), tables(), page_size=PAGE_SIZE)

    line = plain.line.tolist()
    told = [100 + line[0], int(plain.ids[1]), 100 + line[2], 100 + line[3]]
    assert made.first(4).input_ids.tolist() == told


def test_a_token_is_read_when_the_step_runs() -> None:
    """What the step before has sampled need not be there when the buffers are filled."""
    made = buffers()
    rows = taken_from_device(step(1), [0])
    made.fill(rows, tables(), page_size=PAGE_SIZE)

    made.last[int(rows.line[0])] = 77

    assert made.first(1).input_ids.tolist() == [77]


def test_as_many_lines_as_buffers_are_read() -> None:
    made = buffers(rows=16)
    made.last.copy_(torch.arange(100, 116, device=DEVICE))
    given = PlanRows.of(packed_rows([PlannedRow(15, 9, [0], 1)]))

    made.fill(given, tables(16), page_size=PAGE_SIZE)

    assert made.first(1).input_ids.tolist() == [115]


def test_more_rows_than_there_are_buffers_for_are_refused() -> None:
    made = buffers(rows=20)
    assert made.rows == 32

    with pytest.raises(ValueError, match="33 rows"):
        made.fill(step(33, lines=40), tables(40), page_size=PAGE_SIZE)


@pytest.mark.gpu
def test_on_the_gpu_what_is_in_flight_is_not_overwritten() -> None:
    made, got = buffers(), torch.zeros((50, 5), dtype=torch.int64, device=DEVICE)
    where = tables()
    slow = torch.randn(4096, 4096, device=DEVICE)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for seed in range(50):
            slow = slow @ slow * 1e-3
            made.fill(step(5, seed=seed), where, page_size=PAGE_SIZE)
            got[seed] = made.first(5).input_ids
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert got.tolist() == [step(5, seed=seed).ids.tolist() for seed in range(50)]
