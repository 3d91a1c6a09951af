"""Blocks of 4 tokens made by the device."""

from types import ModuleType
from typing import Any

import pytest
import torch

from jit_kernels.compress_pool import (
    BlockPages,
    EndedBlocks,
    cuda_backend,
    reference,
    triton_backend,
)
from jit_kernels.paged_rows import PageLayout
from tests.jit_kernels.kernels.sizes import with_large
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

V4 = (512, 128, 64, "fp8")
SHAPES = [(80, 32, 16, "fp8"), (22, 6, 4, "bf16"), (34, 17 * 2, 8, "fp32")]
CHUNKS = with_large(
    [[Chunk(0, 9, 2, (5,)), Chunk(6, 2, 1, (7,)), Chunk(255, 4, 4, (257,))]],
    [[Chunk(91 * nth, 1 + nth % 60, nth + 1, (91 * nth + 1,)) for nth in range(99)]],
)
# Steps of few blocks, which one launch takes: rings read and written, rows that end no block.
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
BACKENDS = pytest.mark.parametrize("backend", with_large([triton_backend], [cuda_backend]))


def layouts(width: int, key: int, turned: int, record_format: str) -> tuple[PageLayout, PageLayout]:
    """Return layouts of records and of keys, three a page."""
    if record_format != "fp8":
        size = 2 if record_format == "bf16" else 4
        plain = [PageLayout(3, n * size, 0, 3 * n * size) for n in (width, key)]
        return plain[0], plain[1]
    data, scale = width + turned, -(-(width - turned) // 512) * 8
    units = -(-3 * (data + scale) // data)
    return PageLayout(3, data, scale, units * data), PageLayout(3, key, 4, 4 * key)


def options(shape: tuple[int, int, int, str], rings: int) -> dict[str, Any]:
    """Return poisoned pages and what else all calls need."""
    width, key, turned, record_format = shape
    ape = torch.randn(4, 4 * (width + key))
    ape[:, : 2 * width] = 0
    ape[:, 4 * width : 4 * width + 2 * key] = 0
    main, index = layouts(width, key, turned, record_format)
    return {
        "ape": ape,
        "main": block_pages(16 * rings, main, width),
        "index": block_pages(16 * rings, index, key),
        "eps": 1e-6,
        "record_format": record_format,
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
        assert_like_pages(got[name], want[name], got["record_format"], what=name)


def wide_rows(count: int, columns: int, *, first: int = 3) -> torch.Tensor:
    """Return rows that are part of wider ones; they are aligned if `first` is a multiple of 4."""
    return torch.randn(count, columns + 2 * first)[:, first : columns + first]


@BACKENDS
@pytest.mark.parametrize("chunks", [*CHUNKS, *with_large([], FEW)], ids=len)
@pytest.mark.parametrize(("shape", "span"), [(V4, 8), *((shape, 11) for shape in SHAPES)], ids=str)
def test_chunks_equal_the_reference(
    shape: tuple[int, int, int, str], chunks: list[Chunk], span: int, backend: ModuleType
) -> None:
    columns = 4 * (shape[0] + shape[1])
    step, rings = some_step(chunks, ratio=4, span=span, turned=shape[2], page_rows=3)
    more, state = options(shape, rings), poisoned_state(chunks, rings, span, columns)
    rows = wide_rows(len(step.tokens.row), columns, first=span % 8 or 4)
    where = {"tokens": step.tokens, "last": step.last, "ended": step.ended, "saves": step.saves}
    want, goal = state.clone(), copied(more)
    reference.pool_chunks(rows, want, **where, **goal)

    backend.pool_chunks(rows, state, **where, **more)

    assert_same_bits(state, want)
    assert_like(more, goal)


@BACKENDS
@pytest.mark.parametrize("first", [3, 4])
@pytest.mark.parametrize("shape", [V4, *SHAPES], ids=str)
def test_decoding_rows_equal_the_reference(
    shape: tuple[int, int, int, str], first: int, backend: ModuleType
) -> None:
    chunks = [Chunk(start, 1, nth + 1) for nth, start in enumerate((0, 3, 6, 7, 11, 255, 4097))]
    columns = 4 * (shape[0] + shape[1])
    more, state = options(shape, 9), poisoned_state(chunks, 9, 8, columns)
    position = torch.tensor([chunk.start for chunk in chunks] + [-1, -1])
    ring = torch.tensor([chunk.ring for chunk in chunks] + [0, 0], dtype=torch.int32)
    slots = torch.where(position % 4 == 3, torch.arange(9) + 3, 0).masked_fill(position < 0, 5)
    slots[3] = 0
    where = {
        "position": position,
        "ring": ring,
        "ended": EndedBlocks(slots, turns(position - 3, shape[2])),
    }
    rows, want, goal = wide_rows(9, columns, first=first), state.clone(), copied(more)
    reference.pool_tokens(rows, want, **where, **goal)

    backend.pool_tokens(rows, state, **where, **more)

    assert_same_bits(state, want)
    assert_like(more, goal)


@BACKENDS
@pytest.mark.parametrize("chunks", [CHUNKS[0], *with_large([], FEW)], ids=len)
@pytest.mark.parametrize("shape", [V4, SHAPES[-1]], ids=str)
def test_chunks_give_the_bits_of_their_tokens_one_by_one(
    shape: tuple[int, int, int, str], chunks: list[Chunk], backend: ModuleType
) -> None:
    columns = 4 * (shape[0] + shape[1])
    step, rings = some_step(chunks, ratio=4, span=8, turned=shape[2], page_rows=3)
    more, state = options(shape, rings), poisoned_state(chunks, rings, 8, columns)
    rows = torch.randn(len(step.tokens.row), columns)
    one_by_one, alone = state.clone(), copied(more)
    where = {"tokens": step.tokens, "last": step.last, "ended": step.ended, "saves": step.saves}

    backend.pool_chunks(rows, state, **where, **more)

    begins = [sum(chunk.length for chunk in chunks[:nth]) for nth in range(len(chunks))]
    for done, some in enumerate(by_token(chunks)):
        part = [chunk for _, chunk in some]
        one, _ = some_step(part, ratio=4, span=8, turned=shape[2], page_rows=3)
        slots = torch.zeros(len(part), dtype=torch.int64)
        rotation, kept = torch.zeros(len(part), 2, shape[2]), one.ended.slots > 0
        slots[one.last[kept]] = one.ended.slots[kept]
        rotation[one.last[kept]] = one.ended.rotation[kept]
        backend.pool_tokens(
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


@pytest.mark.parametrize("backend", with_large([], [cuda_backend]))
@pytest.mark.parametrize(("start", "length"), [(0, 3), (1, 1), (5, 2000)])
def test_blocks_that_share_a_processor_have_the_same_bits(
    start: int, length: int, backend: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists of blocks longer than a program keeps, and none at all."""
    chunks, columns = [Chunk(start, length, 1, (start + 1,))], 4 * (V4[0] + V4[1])
    step, rings = some_step(chunks, ratio=4, span=8, turned=V4[2], page_rows=3)
    more, state = options(V4, length // 64 + rings), poisoned_state(chunks, rings, 8, columns)
    slots = torch.where(step.ended.slots > 0, 3 + torch.arange(len(step.ended.slots)), 0)
    where = {
        "tokens": step.tokens,
        "last": step.last,
        "ended": EndedBlocks(slots, step.ended.rotation),
        "saves": step.saves,
    }
    rows = torch.randn(len(step.tokens.row), columns)
    want, goal = state.clone(), copied(more)
    backend.pool_chunks(rows, want, **where, **goal)
    monkeypatch.setattr(backend, "processors", lambda device: 1)

    backend.pool_chunks(rows, state, **where, **more)

    for name in ("main", "index"):
        assert_same_bits(more[name].pages, goal[name].pages, what=name)
    assert_same_bits(state, want)


@pytest.mark.parametrize("backend", with_large([], [cuda_backend]))
@pytest.mark.parametrize("start", [0, 77])
@pytest.mark.parametrize("pieces", [(1, 9, 300), (1_000, 500, 3), (2_000, 1_030, 5_000)])
def test_pieces_of_any_size_have_the_bits_of_the_whole(
    pieces: tuple[int, ...], start: int, backend: ModuleType
) -> None:
    """Each size of a step may have a kernel of its own."""
    length, columns = sum(pieces), 4 * (V4[0] + V4[1])
    whole = [Chunk(start, length, 1)]
    more, rows = options(V4, 9 + length // 64), torch.randn(length, columns)
    state = poisoned_state(whole, 2, 8, columns)
    in_pieces, alone = state.clone(), copied(more)

    def pool(first: int, count: int, entries: torch.Tensor, mine: dict[str, Any]) -> None:
        step, _ = some_step(
            [Chunk(start + first, count, 1)], ratio=4, span=8, turned=V4[2], page_rows=3
        )
        block = step.tokens.position[step.last.clamp(min=0)] // 4
        slots = torch.where(step.ended.slots > 0, 3 + block, 0)
        backend.pool_chunks(
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
