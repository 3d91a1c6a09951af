"""Windows, blocks and indices of a step of chunks."""

import pytest
import torch
from torch import Tensor

from jit_kernels.decode_indices import PageSizes
from jit_kernels.kv_workspace import fill_workspace
from jit_kernels.prefill_indices import prefill_slots
from jit_kernels.store_kv.reference import store_records
from layers.models.deepseek_v4.config import pool_spec
from layers.models.deepseek_v4.model import angles
from layers.models.deepseek_v4.pools import KvPools
from layers.steps.chunks.blocks import ChunkBlocks, ChunkIndex, ChunkWindow, chunk_tokens
from layers.steps.chunks.plan import ChunkPlan, plan_chunks
from layers.steps.forward_batch import ForwardBatch
from mem_cache.spec import PoolSizes
from tests.layers.steps.test_step_tokens import batch
from tests.testing.attention_pair import CONFIG
from tests.testing.compare import assert_same_bits

pytestmark = pytest.mark.usefixtures("poisoned_empty")

SPEC = pool_spec(CONFIG, "fp8")


def plan_of(device: torch.device, step: ForwardBatch | None = None) -> ChunkPlan:
    """Return the plan of a step; without one, of [250, 262) of one row and [5, 7) of another."""
    return plan_chunks(step or batch(), SPEC, top_k=CONFIG.index_topk, device=device)


def blocks_of(plan: ChunkPlan, ratio: int) -> ChunkBlocks:
    """Return the blocks of a step."""
    blocks = plan.blocks[ratio]
    rope = angles(CONFIG, plan.device)
    return ChunkBlocks.of(blocks, ratio, rope.rotation(blocks.first, compressed=True))


def test_the_compressors_take_tokens_by_row_and_position(device: torch.device) -> None:
    taken = chunk_tokens(plan_of(device))

    assert taken.position.tolist() == [*range(250, 262), 5, 6]
    assert taken.row.tolist() == [0] * 12 + [1] * 2
    assert (taken.start.tolist(), taken.ring.tolist()) == ([250, 5], [1, 2])


def test_blocks_are_finished_listed_and_saved(device: torch.device) -> None:
    blocks = blocks_of(plan_of(device), 4)

    # Only positions 256..259 end a block that is to be written: the row replays until 256.
    assert (blocks.last.tolist(), blocks.ended.slots.tolist()) == ([9], [4 * 64])
    assert (blocks.listed.base.tolist(), blocks.listed.count) == ([0, 65], 66)
    assert blocks.columns == 65
    # A ring of eight rows ends with position 261 of row 0.
    assert blocks.saves.target[:8].tolist() == [8 + p % 8 for p in range(254, 262)]
    assert blocks.saves.source[:8].tolist() == [16 + token for token in range(4, 12)]


def test_blocks_of_128_save_banks(device: torch.device) -> None:
    blocks = blocks_of(plan_of(device), 128)

    assert blocks.last.tolist() == []
    assert (blocks.listed.base.tolist(), blocks.listed.count, blocks.columns) == ([0, 2], 2, 2)
    assert blocks.saves.target[:2].tolist() == [2 + 260 % 2, 2 + 261 % 2]


def test_an_index_in_slices_names_what_a_whole_one_names(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(device)
    blocks = blocks_of(plan, 4)
    whole = ChunkIndex(plan, 128, blocks=blocks.listed, columns=65)
    monkeypatch.setattr("layers.steps.chunks.blocks.INDEX_BYTES", 5 * 4 * 256)
    sliced = ChunkIndex(plan, 128, blocks=blocks.listed, columns=65)

    parts = list(sliced.parts())

    assert [(part.start, part.stop) for part, _, _ in parts] == [(0, 5), (5, 10), (10, 14)]
    assert_same_bits(torch.cat([index for _, index, _ in parts]), whole.whole[0])
    assert_same_bits(torch.cat([lengths for _, _, lengths in parts]), whole.whole[1])


def test_an_index_to_be_filled_is_made_whole(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(device)
    monkeypatch.setattr("layers.steps.chunks.blocks.INDEX_BYTES", 1)
    listed = blocks_of(plan, 4).listed

    index, lengths = ChunkIndex(plan, 128, blocks=listed, columns=8, chosen=True).whole

    assert index.shape == (14, 256)
    assert bool((index[:, 128:] == -1).all())
    assert lengths.tolist() == [128 + 8] * 12 + [128 + 1] * 2


def test_keys_before_and_of_the_chunks_stand_in_order_and_saves_come_last(
    device: torch.device,
) -> None:
    step = batch()
    step.window[1] = torch.tensor([3, 0, 0, 0])
    step.save_window[1:, 0] = torch.tensor([3, 5])
    plan = plan_of(device, step)
    pools = KvPools(SPEC, PoolSizes(8, 8, 8), device)
    pools.swa.fill_(0xFF)
    layout, layer = pools.swa_layout, 1
    before = torch.randn(5, 512).bfloat16()
    held = 3 * 64 + torch.arange(5)
    store_records(pools.swa[layer], held, before, layout, "fp8", 64)
    window = ChunkWindow(plan, pools, _old_slots(plan))
    kv, rotation = torch.randn(14, 512), angles(CONFIG, device)
    turned = rotation.rotation(plan.position, compressed=True)

    window.store(layer, kv, weight=torch.ones(512), rotation=turned, eps=1e-6)
    entries = torch.empty(window.entries, 512, dtype=torch.bfloat16)
    fill_workspace(entries, [window.records()])
    window.save(layer)

    assert window.entries == 2 * 127 + 14
    # Nothing before 250 is read of row 0; of row 1 there are five keys.
    assert not entries[: 2 * 127 - 5].any()
    kept = torch.empty(7, 512, dtype=torch.bfloat16)
    for page in (3, 5):
        slots = page * 64 + torch.arange(6 if page == 5 else 7, dtype=torch.int32)
        records = window.records()
        fill_workspace(kept, [type(records)(pools.swa[layer], layout, slots)])
        want = torch.cat((entries[2 * 127 - 5 : 2 * 127], entries[-2:]))
        assert_same_bits(kept[: len(slots)], want[: len(slots)])


def _old_slots(plan: ChunkPlan) -> Tensor:
    (old,) = prefill_slots(
        plan.chunk_start,
        plan.chunk_len,
        plan.page_table,
        plan.window,
        window_from=plan.window_from,
        sizes=PageSizes(256, 64, 128),
        blocks=(),
    )
    return old
