"""Blocks of 128 tokens, from rows to records."""

from typing import Any

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.compress_fold import fold_chunks, fold_tokens
from jit_kernels.compress_pool import BlockPages, EndedBlocks
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

WIDTH, TURNED = 80, 16
RECORD = PageLayout(page_rows=3, data_bytes=320, scale_bytes=0, page_bytes=960)
PACKED = PageLayout(page_rows=3, data_bytes=96, scale_bytes=8, page_bytes=384)
CHUNKS = [Chunk(0, 3, 2, (1,)), Chunk(250, 8, 1, (252, 256)), Chunk(127, 1, 3)]


def options(record_format: str = "fp32") -> dict[str, Any]:
    """Return poisoned pages and what else all calls need."""
    ape = torch.randn(128, 2 * WIDTH)
    ape[:, :WIDTH] = 0
    layout = PACKED if record_format == "fp8" else RECORD
    return {
        "ape": ape,
        "pages": block_pages(200, layout, WIDTH),
        "eps": 1e-6,
        "record_format": record_format,
    }


def test_a_whole_block_is_a_softmax_over_its_tokens() -> None:
    more, state = options(), torch.full((2, 2, 3, WIDTH), torch.nan)
    rows, ring = torch.randn(128, 2 * WIDTH), torch.tensor([1], dtype=torch.int32)
    rotation = turns(torch.tensor([256]), TURNED)

    for token in range(128):
        slots = torch.tensor([7 if token == 127 else 0])
        fold_tokens(
            rows[token : token + 1],
            state,
            position=torch.tensor([256 + token]),
            ring=ring,
            ended=EndedBlocks(slots, rotation),
            **more,
        )

    weights = (rows + more["ape"])[:, WIDTH:].double().softmax(0)
    mean = (weights * rows[:, :WIDTH].double()).sum(0, keepdim=True).float()
    want = rms_norm(mean, more["pages"].weight, eps=1e-6)
    rope(want.unsqueeze(1), rotation)
    got = gather_rows(more["pages"].pages, torch.tensor([7]), RECORD).view(torch.float32)
    assert_close(got, want, Bounds(atol=1e-4))
    assert bool(state[0].isnan().all())


@pytest.mark.parametrize("record_format", ["fp32", "fp8"])
def test_chunks_give_the_bits_of_their_tokens_one_by_one(record_format: str) -> None:
    more = options(record_format)
    step, rings = some_step(CHUNKS, ratio=128, span=2, turned=TURNED, page_rows=3)
    state = poisoned_state(CHUNKS, rings, 2, 3, WIDTH)
    rows = torch.randn(len(step.tokens.row), 2 * WIDTH)
    own = more["pages"]
    alone: dict[str, Any] = more | {"pages": BlockPages(own.pages.clone(), own.layout, own.weight)}
    one_by_one = state.clone()

    fold_chunks(
        rows,
        state,
        tokens=step.tokens,
        window_from=torch.zeros(3, dtype=torch.int64),
        last=step.last,
        ended=step.ended,
        saves=step.saves,
        **more,
    )

    begins = [sum(chunk.length for chunk in CHUNKS[:nth]) for nth in range(len(CHUNKS))]
    for done, some in enumerate(by_token(CHUNKS)):
        part = [chunk for _, chunk in some]
        one, _ = some_step(part, ratio=128, span=2, turned=TURNED, page_rows=3)
        slots, rotation = (
            torch.zeros(len(part), dtype=torch.int64),
            torch.zeros(len(part), 2, TURNED),
        )
        kept = one.ended.slots > 0
        slots[one.last[kept]] = one.ended.slots[kept]
        rotation[one.last[kept]] = one.ended.rotation[kept]
        fold_tokens(
            rows[[begins[nth] + done for nth, _ in some]],
            one_by_one,
            position=one.tokens.position,
            ring=one.tokens.ring,
            ended=EndedBlocks(slots, rotation),
            **alone,
        )
    assert_same_bits(own.pages, alone["pages"].pages)
    for chunk in CHUNKS:
        assert_same_bits(state[chunk.ring], one_by_one[chunk.ring])


def test_a_chunk_whose_window_begins_with_it_begins_a_block() -> None:
    chunks = [Chunk(300, 2, 1)]
    step, rings = some_step(chunks, ratio=128, span=2, turned=TURNED, page_rows=3)
    state, rows = torch.full((rings, 2, 3, WIDTH), torch.nan), torch.randn(2, 2 * WIDTH)
    more = options()

    fold_chunks(
        rows,
        state,
        tokens=step.tokens,
        window_from=torch.tensor([300]),
        last=step.last,
        ended=step.ended,
        saves=step.saves,
        **more,
    )

    gate = (rows + more["ape"][44:46])[:, WIDTH:]
    assert_same_bits(state[1, 0], torch.stack((gate[0], torch.ones(WIDTH), rows[0, :WIDTH])))
    assert_same_bits(state[1, 1, 0], gate.amax(0))


def test_rows_that_only_pad_leave_everything() -> None:
    more, state = options(), torch.randn(2, 2, 3, WIDTH)
    before = state.clone()

    fold_tokens(
        torch.full((2, 2 * WIDTH), torch.nan),
        state,
        position=torch.tensor([-1, -1]),
        ring=torch.zeros(2, dtype=torch.int32),
        ended=EndedBlocks(torch.tensor([0, 4]), torch.full((2, 2, TURNED), torch.nan)),
        **more,
    )

    assert_same_bits(state, before)
    assert bool((more["pages"].pages == 255).all())


def test_a_ring_of_one_bank_and_other_pages_are_refused() -> None:
    more = options()
    where: dict[str, Any] = {
        "position": torch.zeros(1, dtype=torch.int64),
        "ring": torch.zeros(1, dtype=torch.int32),
        "ended": EndedBlocks(torch.zeros(1, dtype=torch.int64), torch.zeros(1, 2, TURNED)),
    }
    rows = torch.zeros(1, 2 * WIDTH)
    with pytest.raises(ShapeError, match="at least 2"):
        fold_tokens(rows, torch.zeros(2, 1, 3, WIDTH), **where, **more)
    packed: dict[str, Any] = more | {"record_format": "fp8"}
    with pytest.raises(ShapeError, match="do not fit"):
        fold_tokens(rows, torch.zeros(2, 2, 3, WIDTH), **where, **packed)
