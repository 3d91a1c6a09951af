"""Blocks of 4 tokens made by the device."""

from typing import Any

import pytest
import torch

from jit_kernels.compress_pool import (
    BlockPages,
    EndedBlocks,
    cuda_backend,
    reference,
)
from jit_kernels.paged_rows import PageLayout
from tests.testing.compare import assert_same_bits
from tests.testing.compressed_steps import (
    Chunk,
    assert_like_pages,
    block_pages,
    by_token,
    poisoned_state,
    some_step,
    turns,
)

WIDTH, KEY, TURNED = 512, 128, 64
COLUMNS = 4 * (WIDTH + KEY)
RECORDS = PageLayout(page_rows=3, data_bytes=576, scale_bytes=8, page_bytes=2304)
KEYS = PageLayout(page_rows=3, data_bytes=KEY, scale_bytes=4, page_bytes=4 * KEY)
CHUNKS = [
    [Chunk(0, 9, 2, (5,)), Chunk(6, 2, 1, (7,)), Chunk(255, 4, 4, (257,))],
    [Chunk(91 * nth, 1 + nth % 60, nth + 1, (91 * nth + 1,)) for nth in range(99)],
]
# Steps of few blocks: rings read and written, rows that end no block.
FEW = [
    [Chunk(0, 9, 2, (5,))],
    [Chunk(0, 64, 1)],
    [Chunk(3, 60, 1)],
    [Chunk(8, 64, 2)],
    [Chunk(6, 2, 1, (7,))],
    [Chunk(255, 4, 4)],
    [Chunk(2, 3, 1), Chunk(17, 30, 2)],
    [Chunk(5, 3, 1), Chunk(0, 4, 2)],
]
# Rows of one to eight tokens, a guess or more each: one row, few of them, many.
GUESSES = [
    [Chunk(250, 8, 1)],
    [Chunk(2, 5, 1)],
    [Chunk(124 + nth, nth, nth) for nth in range(1, 9)],
    [Chunk(11 * nth, 1 + nth % 8, nth) for nth in range(1, 99)],
]
pytestmark = pytest.mark.gpu


def options(rings: int) -> dict[str, Any]:
    """Return poisoned pages and what else all calls need."""
    ape = torch.randn(4, COLUMNS)
    ape[:, : 2 * WIDTH] = 0
    ape[:, 4 * WIDTH : 4 * WIDTH + 2 * KEY] = 0
    return {
        "ape": ape,
        "main": block_pages(16 * rings, RECORDS, WIDTH),
        "index": block_pages(16 * rings, KEYS, KEY),
        "eps": 1e-6,
        "record_format": "fp8",
    }


def copied(more: dict[str, Any]) -> dict[str, Any]:
    """Return the same with pages of its own."""
    own = {
        name: BlockPages(more[name].pages.clone(), more[name].layout, more[name].weight)
        for name in ("main", "index")
    }
    return more | own


def assert_like(got: dict[str, Any], want: dict[str, Any]) -> None:
    """Fail unless pages hold the same but for rounding."""
    for name in ("main", "index"):
        assert_like_pages(got[name], want[name], what=name)


def wide_rows(count: int, columns: int, *, first: int = 3) -> torch.Tensor:
    """Return rows that are part of wider ones; they are aligned if `first` is a multiple of 4."""
    return torch.randn(count, columns + 2 * first)[:, first : columns + first]


@pytest.mark.parametrize("chunks", [*CHUNKS, *FEW, *GUESSES], ids=len)
@pytest.mark.parametrize("span", [8, 11, 16])
def test_chunks_equal_the_reference(chunks: list[Chunk], span: int) -> None:
    step, rings = some_step(chunks, ratio=4, span=span, turned=TURNED, page_rows=3)
    more, state = options(rings), poisoned_state(chunks, rings, span, COLUMNS)
    rows = wide_rows(len(step.tokens.row), COLUMNS, first=span % 8 or 4)
    where = {"tokens": step.tokens, "last": step.last, "ended": step.ended, "saves": step.saves}
    want, goal = state.clone(), copied(more)
    reference.pool_chunks(rows, want, **where, **goal)

    cuda_backend.pool_chunks(rows, state, **where, **more)

    assert_same_bits(state, want)
    assert_like(more, goal)


@pytest.mark.parametrize(("first", "span"), [(3, 8), (4, 8), (4, 16)])
def test_decoding_rows_equal_the_reference(first: int, span: int) -> None:
    chunks = [Chunk(start, 1, nth + 1) for nth, start in enumerate((0, 3, 6, 7, 11, 255, 4097))]
    more, state = options(9), poisoned_state(chunks, 9, span, COLUMNS)
    position = torch.tensor([chunk.start for chunk in chunks] + [-1, -1])
    ring = torch.tensor([chunk.ring for chunk in chunks] + [0, 0], dtype=torch.int32)
    slots = torch.where(position % 4 == 3, torch.arange(9) + 3, 0).masked_fill(position < 0, 5)
    slots[3] = 0
    where = {
        "position": position,
        "ring": ring,
        "ended": EndedBlocks(slots, turns(position - 3, TURNED)),
    }
    rows, want, goal = wide_rows(9, COLUMNS, first=first), state.clone(), copied(more)
    reference.pool_tokens(rows, want, **where, **goal)

    cuda_backend.pool_tokens(rows, state, **where, **more)

    assert_same_bits(state, want)
    assert_like(more, goal)


@pytest.mark.parametrize("chunks", [CHUNKS[0], *FEW, *GUESSES], ids=len)
@pytest.mark.parametrize("span", [8, 16])
def test_chunks_give_the_bits_of_their_tokens_one_by_one(chunks: list[Chunk], span: int) -> None:
    step, rings = some_step(chunks, ratio=4, span=span, turned=TURNED, page_rows=3)
    more, state = options(rings), poisoned_state(chunks, rings, span, COLUMNS)
    rows = torch.randn(len(step.tokens.row), COLUMNS)
    one_by_one, alone = state.clone(), copied(more)
    where = {"tokens": step.tokens, "last": step.last, "ended": step.ended, "saves": step.saves}

    cuda_backend.pool_chunks(rows, state, **where, **more)

    begins = [sum(chunk.length for chunk in chunks[:nth]) for nth in range(len(chunks))]
    for done, some in enumerate(by_token(chunks)):
        part = [chunk for _, chunk in some]
        one, _ = some_step(part, ratio=4, span=span, turned=TURNED, page_rows=3)
        slots = torch.zeros(len(part), dtype=torch.int64)
        rotation, kept = torch.zeros(len(part), 2, TURNED), one.ended.slots > 0
        slots[one.last[kept]] = one.ended.slots[kept]
        rotation[one.last[kept]] = one.ended.rotation[kept]
        cuda_backend.pool_tokens(
            rows[[begins[nth] + done for nth, _ in some]],
            one_by_one,
            position=one.tokens.position,
            ring=one.tokens.ring,
            ended=EndedBlocks(slots, rotation),
            **alone,
        )
    for name in ("main", "index"):
        assert_same_bits(more[name].pages, alone[name].pages, what=name)
    for chunk in chunks:
        assert_same_bits(state[chunk.ring], one_by_one[chunk.ring])


@pytest.mark.parametrize(("start", "length"), [(0, 3), (1, 1), (5, 2000)])
def test_blocks_that_share_a_processor_have_the_same_bits(
    start: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists of blocks longer than a program keeps, and none at all."""
    chunks = [Chunk(start, length, 1, (start + 1,))]
    step, rings = some_step(chunks, ratio=4, span=8, turned=TURNED, page_rows=3)
    more, state = options(length // 64 + rings), poisoned_state(chunks, rings, 8, COLUMNS)
    slots = torch.where(step.ended.slots > 0, 3 + torch.arange(len(step.ended.slots)), 0)
    where = {
        "tokens": step.tokens,
        "last": step.last,
        "ended": EndedBlocks(slots, step.ended.rotation),
        "saves": step.saves,
    }
    rows = torch.randn(len(step.tokens.row), COLUMNS)
    want, goal = state.clone(), copied(more)
    cuda_backend.pool_chunks(rows, want, **where, **goal)
    monkeypatch.setattr(cuda_backend, "processors", lambda device: 1)

    cuda_backend.pool_chunks(rows, state, **where, **more)

    for name in ("main", "index"):
        assert_same_bits(more[name].pages, goal[name].pages, what=name)
    assert_same_bits(state, want)


@pytest.mark.parametrize("start", [0, 77])
@pytest.mark.parametrize("pieces", [(1, 9, 300), (1_000, 500, 3), (2_000, 1_030, 5_000)])
def test_pieces_of_any_size_have_the_bits_of_the_whole(pieces: tuple[int, ...], start: int) -> None:
    """Each size of a step may have a kernel of its own."""
    length = sum(pieces)
    whole = [Chunk(start, length, 1)]
    more, rows = options(9 + length // 64), torch.randn(length, COLUMNS)
    state = poisoned_state(whole, 2, 8, COLUMNS)
    in_pieces, alone = state.clone(), copied(more)

    def pool(first: int, count: int, entries: torch.Tensor, mine: dict[str, Any]) -> None:
        step, _ = some_step(
            [Chunk(start + first, count, 1)], ratio=4, span=8, turned=TURNED, page_rows=3
        )
        block = step.tokens.position[step.last.clamp(min=0)] // 4
        slots = torch.where(step.ended.slots > 0, 3 + block, 0)
        cuda_backend.pool_chunks(
            rows[first : first + count],
            entries,
            tokens=step.tokens,
            last=step.last,
            ended=EndedBlocks(slots, step.ended.rotation),
            saves=step.saves,
            **mine,
        )

    pool(0, length, state, more)
    for nth, count in enumerate(pieces):
        pool(sum(pieces[:nth]), count, in_pieces, alone)

    for name in ("main", "index"):
        assert_same_bits(more[name].pages, alone[name].pages, what=name)
    assert_same_bits(state, in_pieces)
