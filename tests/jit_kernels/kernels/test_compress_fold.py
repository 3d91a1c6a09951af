"""Blocks of 128 tokens folded by the device."""

from typing import Any

import pytest
import torch

from jit_kernels.compress_fold import cuda_backend, reference
from jit_kernels.compress_pool import BlockPages, EndedBlocks
from jit_kernels.paged_rows import PageLayout
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.compressed_steps import (
    Chunk,
    assert_like_pages,
    block_pages,
    by_token,
    poisoned_state,
    some_step,
    turns,
)

WIDTH, TURNED = 512, 64
PAGES = PageLayout(page_rows=3, data_bytes=576, scale_bytes=8, page_bytes=2304)
CHUNKS = [
    [Chunk(0, 1, 2), Chunk(379, 8, 1, (380, 384)), Chunk(127, 1, 3), Chunk(45, 3, 5)],
    [Chunk(90 * nth, 1 + 3 * nth, nth + 1, (90 * nth + 1,)) for nth in range(99)],
]
EXACT = Bounds(atol=1e-5, rtol=1e-5)
# Steps of few parts: whole blocks of one row, parts of blocks, rings that are read and written.
FEW = [
    [Chunk(0, 256, 1)],
    [Chunk(128, 256, 1)],
    [Chunk(5, 130, 1)],
    [Chunk(100, 410, 1)],
    [Chunk(100, 60, 1, (130,))],
    [Chunk(100, 28, 1, (101,))],
    [Chunk(0, 1, 2), Chunk(127, 1, 3)],
    [Chunk(126, 3, 1)],
    [Chunk(200, 30, 1), Chunk(10, 3, 2)],
]
# Steps of more parts, from several rows.
MORE = [[Chunk(300 * nth + 31 * nth, 150 + 7 * nth, nth + 1) for nth in range(14)]]
# Chunks over whole blocks, from the middle of one on, and within one.
LONG = [Chunk(0, 300, 1, (17, 129)), Chunk(141, 260, 2), Chunk(190, 65, 4, (200,))]
# Rows of one to eight tokens, a guess or more each: one row, few of them, many.
GUESSES = [
    [Chunk(250, 8, 1)],
    [Chunk(2, 3, 1)],
    [Chunk(120 + nth, nth, nth) for nth in range(1, 9)],
    [Chunk(31 * nth, 1 + nth % 8, nth) for nth in range(1, 99)],
]
pytestmark = pytest.mark.gpu


def options(rings: int) -> dict[str, Any]:
    """Return poisoned pages and what else all calls need."""
    ape = torch.randn(128, 2 * WIDTH)
    ape[:, :WIDTH] = 0
    return {
        "ape": ape,
        "pages": block_pages(16 * rings, PAGES, WIDTH),
        "eps": 1e-6,
        "record_format": "fp8",
    }


def copied(more: dict[str, Any]) -> dict[str, Any]:
    """Return the same with pages of its own."""
    own = more["pages"]
    return more | {"pages": BlockPages(own.pages.clone(), own.layout, own.weight)}


@pytest.mark.parametrize("chunks", [*CHUNKS, *FEW, *MORE, *GUESSES], ids=len)
@pytest.mark.parametrize("span", [2, 3, 9])
def test_chunks_equal_the_reference(chunks: list[Chunk], span: int) -> None:
    step, rings = some_step(chunks, ratio=128, span=span, turned=TURNED, page_rows=3)
    more, state = options(rings), poisoned_state(chunks, rings, span, 3, WIDTH)
    # Rows that begin anywhere, and in the middle of aligned ones.
    first = 3 if span == 3 else 4
    rows = torch.randn(len(step.tokens.row), 2 * WIDTH + 8)[:, first : 2 * WIDTH + first]
    where = {
        "tokens": step.tokens,
        "window_from": torch.tensor([chunk.start if chunk.start == 45 else 0 for chunk in chunks]),
        "last": step.last,
        "ended": step.ended,
        "saves": step.saves,
    }
    want, goal = state.clone(), copied(more)
    reference.fold_chunks(rows, want, **where, **goal)

    cuda_backend.fold_chunks(rows, state, **where, **more)

    assert_close(state, want, EXACT)
    assert_like_pages(more["pages"], goal["pages"], what="pages")


@pytest.mark.parametrize("banks", [2, 9])
def test_decoding_rows_equal_the_reference(banks: int) -> None:
    chunks = [Chunk(start, 1, nth + 1) for nth, start in enumerate((0, 3, 127, 128, 511, 4096))]
    more, state = options(9), poisoned_state(chunks, 9, banks, 3, WIDTH)
    position = torch.tensor([chunk.start for chunk in chunks] + [-1, -1])
    ring = torch.tensor([chunk.ring for chunk in chunks] + [0, 0], dtype=torch.int32)
    slots = torch.where(position % 128 == 127, torch.arange(8) + 3, 0).masked_fill(position < 0, 5)
    where = {
        "position": position,
        "ring": ring,
        "ended": EndedBlocks(slots, turns(position - 127, TURNED)),
    }
    rows, want, goal = torch.randn(8, 2 * WIDTH), state.clone(), copied(more)
    reference.fold_tokens(rows, want, **where, **goal)

    cuda_backend.fold_tokens(rows, state, **where, **more)

    assert_close(state, want, EXACT)
    assert_like_pages(more["pages"], goal["pages"], what="pages")


@pytest.mark.parametrize("chunks", [CHUNKS[0], LONG, *FEW, *GUESSES], ids=len)
@pytest.mark.parametrize("banks", [2, 9])
def test_chunks_give_the_bits_of_their_tokens_one_by_one(chunks: list[Chunk], banks: int) -> None:
    step, rings = some_step(chunks, ratio=128, span=banks, turned=TURNED, page_rows=3)
    more, state = options(rings), poisoned_state(chunks, rings, banks, 3, WIDTH)
    rows = torch.randn(len(step.tokens.row), 2 * WIDTH)
    one_by_one, alone = state.clone(), copied(more)

    cuda_backend.fold_chunks(
        rows,
        state,
        tokens=step.tokens,
        window_from=torch.zeros(len(chunks), dtype=torch.int64),
        last=step.last,
        ended=step.ended,
        saves=step.saves,
        **more,
    )

    begins = [sum(chunk.length for chunk in chunks[:nth]) for nth in range(len(chunks))]
    for done, some in enumerate(by_token(chunks)):
        part = [chunk for _, chunk in some]
        one, _ = some_step(part, ratio=128, span=banks, turned=TURNED, page_rows=3)
        slots = torch.zeros(len(part), dtype=torch.int64)
        rotation, kept = torch.zeros(len(part), 2, TURNED), one.ended.slots > 0
        slots[one.last[kept]] = one.ended.slots[kept]
        rotation[one.last[kept]] = one.ended.rotation[kept]
        cuda_backend.fold_tokens(
            rows[[begins[nth] + done for nth, _ in some]],
            one_by_one,
            position=one.tokens.position,
            ring=one.tokens.ring,
            ended=EndedBlocks(slots, rotation),
            **alone,
        )
    assert_same_bits(more["pages"].pages, alone["pages"].pages)
    for chunk in chunks:
        assert_same_bits(state[chunk.ring], one_by_one[chunk.ring])


@pytest.mark.parametrize("start", [0, 77])
@pytest.mark.parametrize("pieces", [(300, 700), (2_000, 1_000, 1, 127), (6_000, 8_500, 9_000)])
def test_pieces_of_any_size_have_the_bits_of_the_whole(pieces: tuple[int, ...], start: int) -> None:
    """Each size of a step may have a kernel of its own."""
    length = sum(pieces)
    more, ring = options(2 + length // 2000), [Chunk(start, length, 1)]
    rows, state = torch.randn(length, 2 * WIDTH), poisoned_state(ring, 2, 2, 3, WIDTH)
    in_pieces, alone = state.clone(), copied(more)

    def fold(first: int, count: int, banks: torch.Tensor, mine: dict[str, Any]) -> None:
        step, _ = some_step(
            [Chunk(start + first, count, 1)], ratio=128, span=2, turned=TURNED, page_rows=3
        )
        block = step.tokens.position[step.last.clamp(min=0)] // 128
        slots = torch.where(step.ended.slots > 0, 3 + block, 0)
        cuda_backend.fold_chunks(
            rows[first : first + count],
            banks,
            tokens=step.tokens,
            window_from=torch.zeros(1, dtype=torch.int64),
            last=step.last,
            ended=EndedBlocks(slots, step.ended.rotation),
            saves=step.saves,
            **mine,
        )

    fold(0, length, state, more)
    for nth, count in enumerate(pieces):
        fold(sum(pieces[:nth]), count, in_pieces, alone)

    assert_same_bits(more["pages"].pages, alone["pages"].pages)
    assert_same_bits(state, in_pieces)
