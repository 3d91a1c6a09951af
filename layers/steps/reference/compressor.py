"""Running compression: from hidden states to records of blocks of 4 or of 128 tokens."""

from collections.abc import Iterator

import torch
from torch import Tensor

from jit_kernels.compress_kv import fold_blocks, pool_members
from jit_kernels.kv_records import encode_records
from jit_kernels.paged_rows import store_rows
from jit_kernels.rope import rope
from layers.blocks.norm import RmsNorm
from layers.linear.plain import Linear
from layers.models.deepseek_v4.config import ModelConfig
from layers.steps.reference.compression_plan import FinishedBlocks, FoldPlan, PoolingPlan
from mem_cache.layout import StateLayout
from mem_cache.pools import KvPools

__all__ = ["FoldCompressor", "PoolingCompressor", "store_blocks"]


class PoolingCompressor:
    """Blocks of 4 tokens, each pooled over itself and the block before, for keys and indexer.

    Both branches share one product and one state row per token: main kv and gate, indexer kv and
    gate (mem_cache.layout.StateLayout). `ape` is added to the gate columns only, by position % 4.
    """

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        """Allocate the weights, all float32."""
        main, index = 2 * config.head_dim, 2 * config.index_head_dim
        self._layout = StateLayout(config.head_dim, config.index_head_dim)
        self._rows = Linear(
            config.hidden_size,
            {
                "compressor.wkv": main,
                "compressor.wgate": main,
                "indexer.compressor.wkv": index,
                "indexer.compressor.wgate": index,
            },
            dtype=torch.float32,
            device=device,
        )
        self._ape = torch.zeros((4, self._layout.width), dtype=torch.float32, device=device)
        eps = config.rms_norm_eps
        self._norm = RmsNorm(config.head_dim, eps=eps, name="compressor.norm", device=device)
        self._index_norm = RmsNorm(
            config.index_head_dim, eps=eps, name="indexer.compressor.norm", device=device
        )

    def advance(
        self, x: Tensor, plan: PoolingPlan, pools: KvPools, layer: int
    ) -> tuple[Tensor, Tensor] | None:
        """Write the state rows that the step saves, and pool the blocks that it finishes.

        x  [T, d] the normed input of the attention block

        Returns (records [m, head_dim], indexer keys [m, index_head_dim]), float32, normed and
        rotated; None when no block is finished.
        """
        layout, old = self._layout, plan.old_rows.shape[0]
        state = pools.c4_state[pools.nth(layer)].view(-1, layout.width)
        rows = torch.empty((old + x.shape[0], layout.width), dtype=torch.float32, device=x.device)
        rows[:old] = state.index_select(0, plan.old_rows)
        fresh = self._rows(x, out_dtype=torch.float32)
        torch.add(fresh, self._ape.index_select(0, plan.phase), out=rows[old:])
        saves = plan.saves
        state.index_copy_(0, saves.target, rows.index_select(0, saves.source))
        if not plan.members.shape[0]:
            return None
        records = self._norm(_pool(rows, plan.members, layout.main, layout.head_dim))
        keys = self._index_norm(_pool(rows, plan.members, layout.index, layout.index_head_dim))
        rotation = plan.finished.rotation
        rope(records.unsqueeze(1), rotation)
        rope(keys.unsqueeze(1), rotation)
        return records, keys

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights of both branches under their names in files."""
        yield from self._rows.named_weights(prefix)
        yield from self._norm.named_weights(prefix)
        yield from self._index_norm.named_weights(prefix)
        first, index_first = self._layout.main[1], self._layout.index[1]
        width = 2 * self._layout.head_dim
        yield f"{prefix}compressor.ape", self._ape[:, first : first + width]
        yield f"{prefix}indexer.compressor.ape", self._ape[:, index_first:]


def _pool(rows: Tensor, members: Tensor, columns: tuple[int, int], width: int) -> Tensor:
    return pool_members(rows, members, kv=columns[0], gate=columns[1], width=width)


class FoldCompressor:
    """Blocks of 128 tokens, folded token by token into a running softmax sum."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        """Allocate the weights, all float32."""
        self._width = width = config.head_dim
        self._rows = Linear(
            config.hidden_size,
            {"compressor.wkv": width, "compressor.wgate": width},
            dtype=torch.float32,
            device=device,
        )
        # The gate's ape, beside zeros for the kv columns.
        self._ape = torch.zeros((128, 2 * width), dtype=torch.float32, device=device)
        self._empty = torch.zeros((1, 3, width), dtype=torch.float32, device=device)
        self._empty[:, 0] = -torch.inf
        self._norm = RmsNorm(width, eps=config.rms_norm_eps, name="compressor.norm", device=device)

    def advance(self, x: Tensor, plan: FoldPlan, pools: KvPools, layer: int) -> Tensor | None:
        """Write the banks that the step saves, and return the records of finished blocks.

        x  [T, d] the normed input of the attention block

        Returns [m, head_dim] float32, normed and rotated; None when no block is finished.
        """
        rows = self._rows(x, out_dtype=torch.float32).add_(self._ape.index_select(0, plan.phase))
        rows = rows.index_select(0, plan.order)
        bank = pools.c128_state[pools.nth(layer)].flatten(0, 1)
        start = bank.index_select(0, plan.start_banks)
        start = torch.where(plan.start_empty.view(-1, 1, 1), self._empty, start)
        kv, gate = rows[:, : self._width], rows[:, self._width :]
        states = fold_blocks(kv, gate, start, active=plan.active)
        known = torch.cat((bank.index_select(0, plan.old_banks), states))
        bank.index_copy_(0, plan.saves.target, known.index_select(0, plan.saves.source))
        if not plan.members.shape[0]:
            return None
        ended = states.index_select(0, plan.members)
        records = self._norm(ended[:, 2] / ended[:, 1])
        rope(records.unsqueeze(1), plan.finished.rotation)
        return records

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights under their names in files."""
        yield from self._rows.named_weights(prefix)
        yield from self._norm.named_weights(prefix)
        yield f"{prefix}compressor.ape", self._ape[:, self._width :]


def store_blocks(records: Tensor, finished: FinishedBlocks, pools: KvPools, layer: int) -> None:
    """Encode finished records and write them to their full pages.

    records  [m, head_dim] float32, normed and rotated
    """
    spec = pools.spec
    pages, layout = pools.blocks(layer)
    rows = encode_records(records, record_format=spec.record_format, rope_channels=spec.rope_dim)
    store_rows(pages, finished.slots, rows, layout)
