"""Units of rows: nothing is shared, and what is copied reads like its source."""

from typing import Any

import pytest
import torch

from layers.models.deepseek_v4.config import load_config, pool_spec
from tests.bench.network.__main__ import CUT
from tests.bench.network.small_network import SMALL, network
from tests.bench.network.units import Chunk, RowUnits, copy_row, forward_batch, packed_steps

CPU = torch.device("cpu")
FLASH = load_config(CUT)
SPEC = pool_spec(SMALL, "fp8")

pytestmark = pytest.mark.usefixtures("dense_weights_once")


def test_rows_share_no_unit_and_use_all_but_the_dummy() -> None:
    units, pools = RowUnits.scattered(SPEC, rows=3, tokens=600, device=CPU)

    for table, count in (
        (units.page_table, pools.sizes.full_pages),
        (units.window, pools.sizes.swa_pages),
        (units.ring, pools.sizes.states),
    ):
        assert sorted(table.flatten().tolist()) == list(range(1, count + 1))


@pytest.mark.parametrize(
    ("sizes", "want"),
    [
        (
            {"prompt": 10, "rows": 2, "budget": 4},
            [
                [Chunk(0, 0, 4)],
                [Chunk(0, 4, 8)],
                [Chunk(0, 8, 10), Chunk(1, 0, 2)],
                [Chunk(1, 2, 6)],
                [Chunk(1, 6, 10)],
            ],
        ),
        ({"prompt": 3, "rows": 2, "budget": 9}, [[Chunk(0, 0, 3), Chunk(1, 0, 3)]]),
        ({"prompt": 4, "rows": 2, "budget": 4}, [[Chunk(0, 0, 4)], [Chunk(1, 0, 4)]]),
    ],
)
def test_steps_are_filled_row_after_row(sizes: dict[str, Any], want: list[list[Chunk]]) -> None:
    assert packed_steps(**sizes) == want


def test_a_row_of_900_000_tokens_is_prefilled_by_chunks_and_decoded() -> None:
    tokens, spec = 900_000, pool_spec(FLASH, "fp8")
    units, pools = RowUnits.scattered(spec, rows=1, tokens=tokens + 56, device=CPU)
    steps = packed_steps(prompt=tokens, rows=1, budget=16_384)

    last = forward_batch(
        units, steps[-1], torch.zeros((1, tokens), dtype=torch.int64), page_size=256
    )
    rows = units.decode_rows(slice(0, 1), torch.zeros(1), position=tokens, pages=4096)

    assert len(steps) == 55
    assert (int(last.chunk_start), int(last.save_position)) == (884_736, tokens)
    assert last.page_table.shape == (1, 3516)
    assert pools.sizes.full_pages == 3516
    assert rows.page_table.shape == (1, 4096)
    assert int((rows.page_table > 0).sum()) == 3516
    assert tokens < FLASH.max_position_embeddings


def test_logits_are_those_of_the_last_token_of_a_prompt() -> None:
    units, _ = RowUnits.scattered(SPEC, rows=2, tokens=300, device=CPU)
    tokens = torch.arange(600).view(2, 300)

    batch = forward_batch(units, [Chunk(0, 200, 300), Chunk(1, 0, 50)], tokens, page_size=256)

    assert batch.input_ids[batch.logit_tokens].tolist() == [299]
    assert batch.page_table.tolist() == units.page_table.tolist()
    assert batch.chunk_len.tolist() == [100, 50]


def test_a_copied_row_goes_on_as_its_source() -> None:
    made, length = network(), 389
    units, pools = RowUnits.scattered(SPEC, rows=3, tokens=length + 1, device=CPU)
    for tensor in pools.tensors().values():
        tensor.view(torch.uint8).fill_(0xFF)
    prompt = torch.randint(SMALL.vocab_size, (1, length))
    for chunks in packed_steps(prompt=length, rows=1, budget=256):
        made.prefill(forward_batch(units, chunks, prompt, page_size=256), pools)

    copy_row(pools, units, 0, slice(1, 3))
    first = torch.tensor([17, 17, 17])
    rows = units.decode_rows(slice(0, 3), first, position=length, pages=4)
    logits = made.decode(rows, pools)

    assert bool(logits.isfinite().all())
    assert torch.equal(logits[1], logits[2])
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=1e-5)
