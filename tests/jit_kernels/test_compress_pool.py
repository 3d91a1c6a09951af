"""Blocks of 4 tokens, from rows to bytes."""

from typing import Any

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.compress_kv import pool_members
from jit_kernels.compress_pool import BlockPages, EndedBlocks, pool_chunks, pool_tokens
from jit_kernels.compress_pool.cuda_calls import aligned, takes_pages
from jit_kernels.indexer_keys import encode_keys, hadamard
from jit_kernels.kv_records import encode_records
from jit_kernels.paged_rows import PageLayout, gather_rows
from jit_kernels.rms_norm import rms_norm
from jit_kernels.rope import rope
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.compressed_steps import (
    Chunk,
    block_pages,
    by_token,
    poisoned_state,
    some_step,
    turns,
)

pytestmark = pytest.mark.usefixtures("device")

RECORD = PageLayout(page_rows=3, data_bytes=80 * 4, scale_bytes=0, page_bytes=960)
KEY = PageLayout(page_rows=3, data_bytes=32 * 4, scale_bytes=0, page_bytes=384)
PACKED = PageLayout(page_rows=3, data_bytes=96, scale_bytes=8, page_bytes=384)
PACKED_KEY = PageLayout(page_rows=3, data_bytes=32, scale_bytes=4, page_bytes=128)
WIDTH, INDEX, TURNED = 80, 32, 16
COLUMNS = 4 * (WIDTH + INDEX)
CHUNKS = [Chunk(0, 11, 2, (5,)), Chunk(6, 2, 1, (7,)), Chunk(257, 17, 4, (258, 270))]


def ape_rows() -> torch.Tensor:
    """Return ape: zeros in the columns of kv."""
    ape = torch.randn(4, COLUMNS)
    ape[:, : 2 * WIDTH] = 0
    ape[:, 4 * WIDTH : 4 * WIDTH + 2 * INDEX] = 0
    return ape


def options(record_format: str = "fp32") -> dict[str, Any]:
    """Return poisoned pages and what else all calls need."""
    layouts = (PACKED, PACKED_KEY) if record_format == "fp8" else (RECORD, KEY)
    return {
        "ape": ape_rows(),
        "main": block_pages(200, layouts[0], WIDTH),
        "index": block_pages(200, layouts[1], INDEX),
        "eps": 1e-6,
        "record_format": record_format,
    }


def pages_of(more: dict[str, Any]) -> list[torch.Tensor]:
    """Return the pages of both branches."""
    return [more["main"].pages, more["index"].pages]


@pytest.mark.parametrize("record_format", ["fp32", "fp8"])
def test_a_block_is_pooled_normed_rotated_and_stored(record_format: str) -> None:
    more, state = options(record_format), torch.randn(2, 8, COLUMNS)
    rows, rotation = torch.randn(1, COLUMNS), turns(torch.tensor([4]), TURNED)
    earlier = [state[1, place].clone() for place in range(7)]

    pool_tokens(
        rows,
        state,
        position=torch.tensor([7]),
        ring=torch.tensor([1], dtype=torch.int32),
        ended=EndedBlocks(torch.tensor([5]), rotation),
        **more,
    )

    members = torch.stack([*earlier, (rows + more["ape"][3])[0]])
    assert_same_bits(state[1], members)
    every = torch.arange(8).unsqueeze(0)
    block = pool_members(members, every, kv=0, gate=2 * WIDTH, width=WIDTH)
    block = rms_norm(block, more["main"].weight, eps=1e-6)
    rope(block.unsqueeze(1), rotation)
    first = 4 * WIDTH
    key = pool_members(members, every, kv=first, gate=first + 2 * INDEX, width=INDEX)
    key = rms_norm(key, more["index"].weight, eps=1e-6)
    rope(key.unsqueeze(1), rotation)
    slot = torch.tensor([5])
    got = gather_rows(more["main"].pages, slot, more["main"].layout)
    got_key = gather_rows(more["index"].pages, slot, more["index"].layout)
    if record_format == "fp32":
        near = Bounds(atol=5e-5, rtol=1e-5)
        assert_close(got.view(torch.float32), block, near)
        assert_close(got_key.view(torch.float32), key, near)
    else:
        wanted = encode_records(block, record_format="fp8", rope_channels=TURNED)
        assert float((got != wanted).float().mean()) < 0.1
        wanted = encode_keys(hadamard(key), record_format="fp8")
        assert float((got_key != wanted).float().mean()) < 0.1


@pytest.mark.parametrize("record_format", ["fp32", "fp8"])
def test_chunks_give_the_bits_of_their_tokens_one_by_one(record_format: str) -> None:
    more, layout = options(record_format), RECORD
    step, rings = some_step(CHUNKS, ratio=4, span=8, turned=TURNED, page_rows=layout.page_rows)
    state = poisoned_state(CHUNKS, rings, 8, COLUMNS)
    rows, one_by_one = torch.randn(len(step.tokens.row), COLUMNS), state.clone()
    alone: dict[str, Any] = more | {
        name: BlockPages(more[name].pages.clone(), more[name].layout, more[name].weight)
        for name in ("main", "index")
    }

    pool_chunks(
        rows, state, tokens=step.tokens, last=step.last, ended=step.ended, saves=step.saves, **more
    )

    begins = [sum(chunk.length for chunk in CHUNKS[:nth]) for nth in range(len(CHUNKS))]
    for done, some in enumerate(by_token(CHUNKS)):
        part = [chunk for _, chunk in some]
        single, _ = some_step(part, ratio=4, span=8, turned=TURNED, page_rows=layout.page_rows)
        slots, rotation = (
            torch.zeros(len(part), dtype=torch.int64),
            torch.zeros(len(part), 2, TURNED),
        )
        kept = single.ended.slots > 0
        slots[single.last[kept]] = single.ended.slots[kept]
        rotation[single.last[kept]] = single.ended.rotation[kept]
        pool_tokens(
            rows[[begins[nth] + done for nth, _ in some]],
            one_by_one,
            position=single.tokens.position,
            ring=single.tokens.ring,
            ended=EndedBlocks(slots, rotation),
            **alone,
        )
    for got, want in zip(pages_of(more), pages_of(alone), strict=True):
        assert_same_bits(got, want)
    for chunk in CHUNKS:
        assert_same_bits(state[chunk.ring], one_by_one[chunk.ring])


def test_saves_see_the_rings_as_they_were_before_the_chunks() -> None:
    """A save early in a chunk copies entries that the chunk's end overwrites."""
    chunks = [Chunk(100, 9, 1, (102,))]
    step, rings = some_step(chunks, ratio=4, span=8, turned=TURNED, page_rows=3)
    state, rows = poisoned_state(chunks, rings, 8, COLUMNS), torch.randn(9, COLUMNS)
    before, more = state.clone(), options()

    pool_chunks(
        rows, state, tokens=step.tokens, last=step.last, ended=step.ended, saves=step.saves, **more
    )

    left = rows + more["ape"][step.tokens.position % 4]
    for place in range(94, 102):
        want = before[1, place % 8] if place < 100 else left[place - 100]
        assert_same_bits(state[2, place % 8], want, what=f"position {place}")
    for place in range(101, 109):
        assert_same_bits(state[1, place % 8], left[place - 100], what=f"position {place}")


def test_rows_that_only_pad_and_blocks_without_a_slot_leave_everything() -> None:
    more, state = options(), torch.randn(3, 8, COLUMNS)
    before = state.clone()

    pool_tokens(
        torch.full((3, COLUMNS), torch.nan),
        state,
        position=torch.tensor([-1, -1, 3]),
        ring=torch.tensor([0, 0, 1], dtype=torch.int32),
        ended=EndedBlocks(torch.tensor([0, 4, 0]), torch.full((3, 2, TURNED), torch.nan)),
        **more,
    )

    assert_same_bits(state[[0, 2]], before[[0, 2]])
    assert bool(state[1, 3].isnan().all())
    for pages in pages_of(more):
        assert bool((pages == 255).all())


def test_rings_and_pages_of_other_sizes_are_refused() -> None:
    more, slots = options(), torch.zeros(1, dtype=torch.int64)
    where: dict[str, Any] = {
        "position": torch.zeros(1, dtype=torch.int64),
        "ring": torch.zeros(1, dtype=torch.int32),
        "ended": EndedBlocks(slots, torch.zeros(1, 2, TURNED)),
    }
    rows = torch.zeros(1, COLUMNS)
    with pytest.raises(ShapeError, match="at least 8"):
        pool_tokens(rows, torch.zeros(2, 7, COLUMNS), **where, **more)
    packed: dict[str, Any] = more | {"record_format": "fp8"}
    with pytest.raises(ShapeError, match="do not fit"):
        pool_tokens(rows, torch.zeros(2, 8, COLUMNS), **where, **packed)
    with pytest.raises(ShapeError, match="rows has shape"):
        pool_tokens(rows[:, 1:], torch.zeros(2, 8, COLUMNS), **where, **more)
    odd: dict[str, Any] = where | {"ended": EndedBlocks(slots, torch.zeros(1, 2, 17))}
    with pytest.raises(ShapeError, match="whole pairs"):
        pool_tokens(rows, torch.zeros(2, 8, COLUMNS), **odd, **more)


def test_kernels_in_cuda_take_copies_of_rows_that_begin_anywhere() -> None:
    rows = torch.randn(3, 24)

    assert aligned(rows[:, 4:12]).data_ptr() == rows[:, 4:].data_ptr()
    copy = aligned(rows[:, 3:11])
    assert copy.data_ptr() % 16 == 0
    assert_same_bits(copy, rows[:, 3:11].contiguous())


def test_kernels_in_cuda_take_pages_of_their_width_in_whole_sixteen_bytes() -> None:
    pages = block_pages(4, PACKED, WIDTH)

    assert takes_pages(pages, WIDTH)
    assert not takes_pages(pages, INDEX)
    odd = PageLayout(page_rows=3, data_bytes=120, scale_bytes=0, page_bytes=360)
    assert not takes_pages(block_pages(4, odd, WIDTH), WIDTH)
