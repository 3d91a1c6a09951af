"""What decode steps read: at fixed places, padded, fed from the step before."""

import dataclasses

import numpy as np
import pytest
import torch

from runtime.executor.decode_buffers import DecodeBuffers
from runtime.executor.step_plan import Phase, StepPlan
from tests.testing.fused_rig import DEVICE

PAGES, WINDOW = 6, 2


def buffers(rows: int = 20) -> DecodeBuffers:
    return DecodeBuffers(rows, pages=PAGES, window_pages=WINDOW, device=DEVICE)


def plan(rows: int, *, columns: int = 3, seed: int = 0) -> StepPlan:
    """A decode step of random numbers."""
    draw = np.random.default_rng(seed)
    each, zero = np.arange(rows), np.zeros(rows, dtype=np.int64)
    start = draw.integers(1000, size=rows)
    window = draw.integers(99, size=(rows, WINDOW)).astype(np.int32)
    ring = draw.integers(99, size=rows).astype(np.int32)
    return StepPlan(
        phase=Phase.DECODE,
        input_ids=draw.integers(500, size=rows).astype(np.int32),
        chunk_start=start,
        chunk_len=np.ones(rows, dtype=np.int64),
        page_table=draw.integers(99, size=(rows, columns)).astype(np.int32),
        window=window,
        ring=ring,
        window_from=zero,
        write_from=zero,
        save_row=each,
        save_position=start + 1,
        save_ring=ring,
        save_window=window,
        page_copies=[],
        swa_copies=[],
        ring_copies=[],
        sampled=each,
        samples=[],
        positions=start + 1,
        prompt_logprobs=[],
    )


def test_rows_are_filled_in_and_the_rest_is_padding() -> None:
    made = buffers()
    for seed, count in enumerate((5, 2, 20, 1, 7, 3)):
        step = plan(count, columns=1 + seed, seed=seed)

        made.fill(step)

        rows = made.first(20)
        assert rows.input_ids[:count].tolist() == step.input_ids.tolist()
        assert rows.position.tolist() == [*step.chunk_start.tolist(), *[-1] * (20 - count)]
        assert rows.page_table[:count, : 1 + seed].tolist() == step.page_table.tolist()
        assert rows.window[:count].tolist() == step.window.tolist()
        assert rows.ring.tolist() == [*step.ring.tolist(), *[0] * (20 - count)]
        assert not rows.window[count:].any()
        assert not rows.input_ids[count:].any()


def test_inputs_stay_where_they_are_and_have_the_types_of_the_contract() -> None:
    made = buffers()
    rows = made.first(8)
    places: set[tuple[int, ...]] = set()
    for seed in range(4):
        made.fill(plan(3, seed=seed))
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


def test_a_fed_row_gets_the_token_that_was_kept_for_it() -> None:
    made = buffers()
    made.keep_sampled(torch.tensor([70, 71, 72], device=DEVICE))
    step = plan(4)
    step.feed = np.array([2, -1, 0, 2])

    made.fill(step)

    assert made.first(4).input_ids.tolist() == [72, int(step.input_ids[1]), 70, 72]


def test_more_tokens_than_rows_may_be_kept() -> None:
    made = buffers(rows=16)
    made.keep_sampled(torch.arange(100, 140, device=DEVICE))
    step = plan(1)
    step.feed = np.array([15])

    made.fill(step)

    assert made.first(1).input_ids.tolist() == [115]


def test_a_row_is_not_fed_by_what_was_not_sampled() -> None:
    made = buffers()
    step = plan(2)
    step.feed = np.array([-1, 1])
    for kept in (torch.empty(0, dtype=torch.int64, device=DEVICE), torch.tensor([70])):
        made.keep_sampled(kept)
        with pytest.raises(ValueError, match=f"row 1 of {len(kept)} that were sampled"):
            made.fill(step)


def test_more_rows_than_there_are_buffers_for_are_refused() -> None:
    made = buffers(rows=20)
    assert made.rows == 32

    with pytest.raises(ValueError, match="33 rows"):
        made.fill(plan(33))


@pytest.mark.gpu
def test_on_the_gpu_what_is_in_flight_is_not_overwritten() -> None:
    made, got = buffers(), torch.zeros((50, 5), dtype=torch.int64, device=DEVICE)
    slow = torch.randn(4096, 4096, device=DEVICE)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(50):
            slow = slow @ slow * 1e-3
            made.fill(plan(5, seed=step))
            got[step] = made.first(5).input_ids
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert got.tolist() == [plan(5, seed=step).input_ids.tolist() for step in range(50)]
