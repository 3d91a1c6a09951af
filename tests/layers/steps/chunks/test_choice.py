"""Choosing blocks for the tokens of chunks, against scores taken one by one."""

import pytest
import torch
from torch import Tensor

from jit_kernels.indexer_keys import decode_keys
from jit_kernels.indexer_queries import indexer_queries
from jit_kernels.paged_rows import gather_rows
from jit_kernels.store_kv.reference import store_keys
from layers.models.deepseek_v4.config import pool_spec
from layers.models.deepseek_v4.model import angles
from layers.models.deepseek_v4.pools import KvPools
from layers.steps.chunks.blocks import ChunkBlocks
from layers.steps.chunks.choice import ChunkChoice, QueryHeads
from layers.steps.chunks.plan import plan_chunks
from mem_cache.spec import PoolSizes
from tests.layers.steps.test_step_tokens import batch
from tests.testing.attention_pair import CONFIG

pytestmark = pytest.mark.usefixtures("poisoned_empty")

SPEC = pool_spec(CONFIG, "fp8")
FIRST, TOP_K = 1000, 8


def scored(heads: QueryHeads, pools: KvPools, slots: Tensor, token: int) -> Tensor:
    """Return the scores of a token with the keys at `slots`, in float64."""
    q, weights = indexer_queries(heads.q, heads.weights, heads.rotation)
    rows = gather_rows(pools.indexer[0], slots, pools.indexer_layout)
    keys = decode_keys(rows, record_format="fp8").double()
    return weights[token].double() @ (q[token].double() @ keys.T).relu()


@pytest.mark.parametrize("slice_bytes", [1 << 20, 3 * 4 * 256])
def test_each_token_gets_its_best_visible_blocks(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, slice_bytes: int
) -> None:
    monkeypatch.setattr("layers.steps.chunks.choice.SCORES_BYTES", slice_bytes)
    plan = plan_chunks(batch(), SPEC, top_k=TOP_K, device=device)
    rope = angles(CONFIG, device)
    pools = KvPools(SPEC, PoolSizes(8, 1, 8), device)
    pools.indexer.fill_(0xFF)
    # Row 0 has blocks 0..64 in pages 3 and 4, row 1 block 0 in page 7.
    held = torch.cat((3 * 64 + torch.arange(64), torch.tensor([4 * 64, 7 * 64])))
    store_keys(pools.indexer[0], held, torch.randn(66, 128), pools.indexer_layout, "fp8")
    blocks = ChunkBlocks.of(plan.blocks[4], 4, rope.rotation(plan.blocks[4].first, compressed=True))
    assert plan.keys is not None
    choice = ChunkChoice(plan, blocks, plan.keys, first=FIRST, top_k=TOP_K)
    rotation = rope.rotation(plan.position, compressed=True)
    heads = QueryHeads(torch.randn(14, 5, 128), torch.rand(14, 5), rotation)
    out = torch.full((14, 256), 77, dtype=torch.int32)

    choice.fill(out[:, 128:], heads, pools.indexer[0], pools.indexer_layout)

    for token in range(12):
        visible = (250 + token + 1) // 4
        scores = scored(heads, pools, held[:visible], token)
        named = out[token, 128 : 128 + TOP_K].to(torch.int64) - FIRST
        assert named.tolist() == sorted(set(named.tolist()))
        assert bool((named < visible).all())
        # Sums of fp8 products in another order: a tie may go either way.
        least = scores.topk(TOP_K).values[-1]
        assert bool((scores[named] >= least - 1e-3 * scores.abs().max()).all())
    # Row 1 sees one block, listed behind the 65 of row 0.
    assert out[12:, 128:131].tolist() == [[FIRST + 65, -1, -1]] * 2
    assert bool((out[:12, 128 + TOP_K :] == -1).all())
