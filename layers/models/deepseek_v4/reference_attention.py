"""Attention of one layer: a sliding window and, in most layers, compressed blocks."""

from collections.abc import Iterator

import torch
from torch import Tensor

from jit_kernels.kv_records import decode_records, encode_records
from jit_kernels.paged_rows import gather_rows, store_rows
from jit_kernels.q_norm_rope import q_norm_rope
from jit_kernels.rope import rope
from jit_kernels.sparse_attention import sparse_attention
from layers.blocks.norm import RmsNorm
from layers.linear.plain import GroupedLinear, Linear
from layers.models.deepseek_v4.config import ModelConfig
from layers.parallel.shares import Shards
from layers.steps.reference.attention_plan import AttentionPlan
from layers.steps.reference.compression_plan import PoolingPlan, pad_tile
from layers.steps.reference.compressor import FoldCompressor, PoolingCompressor, store_blocks
from layers.steps.reference.indexer import Indexer
from mem_cache.pools import KvPools

__all__ = ["Attention"]


class Attention:
    """Multi-query attention with one shared key-value vector a position, which is both.

    Every key passes through the format of the pools before it is used, so that a token reads the
    same numbers whether they were computed in this step or earlier.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        *,
        shards: Shards,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocate the weights of layer `layer`."""
        self._layer, self._ratio = layer, config.compress_ratios[layer]
        self._config, self._shards = config, shards
        self._heads = shards.share(config.num_attention_heads)
        self._groups = shards.share(config.o_groups)
        width, eps = config.head_dim, config.rms_norm_eps
        down = {"wq_a": config.q_lora_rank, "wkv": width}
        up = {"wq_b": self._heads * width}
        if self._ratio == 4:
            down["indexer.weights_proj"] = config.index_n_heads
            up["indexer.wq_b"] = config.index_n_heads * config.index_head_dim
        self._down = Linear(config.hidden_size, down, dtype=dtype, device=device)
        self._q_norm = RmsNorm(config.q_lora_rank, eps=eps, name="q_norm", device=device)
        self._kv_norm = RmsNorm(width, eps=eps, name="kv_norm", device=device)
        self._up = Linear(config.q_lora_rank, up, dtype=dtype, device=device)
        self._sink = torch.zeros(self._heads, dtype=torch.float32, device=device)
        self._wo_a = GroupedLinear(
            self._groups,
            config.o_lora_rank,
            self._heads // self._groups * width,
            name="wo_a",
            dtype=dtype,
            device=device,
        )
        self._wo_b = Linear(
            self._groups * config.o_lora_rank,
            {"wo_b": config.hidden_size},
            dtype=dtype,
            device=device,
        )
        self._pooling = PoolingCompressor(config, device) if self._ratio == 4 else None
        self._fold = FoldCompressor(config, device) if self._ratio == 128 else None
        self._indexer = Indexer(config)

    def __call__(self, x: Tensor, plan: AttentionPlan, pools: KvPools) -> Tensor:
        """Attend and return [T, d] in the dtype of `x`; records and saves are written to `pools`.

        x  [T, d] normed input
        """
        config, tokens = self._config, x.shape[0]
        rotation = plan.compressed_rotation if self._ratio else plan.rotation
        assert rotation is not None
        down = self._down.split(x, out_dtype=torch.float32)
        up = self._up.split(self._q_norm(down[0], out_dtype=x.dtype), out_dtype=torch.float32)
        q = up[0].reshape(tokens, self._heads, config.head_dim)
        q = q_norm_rope(q, rotation, eps=config.rms_norm_eps, out_dtype=x.dtype)
        kv = self._kv_norm(down[1])
        rope(kv.unsqueeze(1), rotation)
        keys, index = self._window_keys(kv, plan, pools), plan.window.index
        if self._pooling is not None and plan.pooling is not None:
            ended = self._pooling.advance(x, plan.pooling, pools, self._layer)
            if ended is not None:
                finished = plan.pooling.finished
                store_blocks(ended[0], finished, pools, self._layer)
                self._indexer.store(ended[1], finished, pools, self._layer)
            blocks, index = self._chosen(up[1], down[2], rotation, plan.pooling, pools)
            keys.append(blocks)
        elif self._fold is not None and plan.fold is not None:
            records = self._fold.advance(x, plan.fold, pools, self._layer)
            if records is not None:
                store_blocks(records, plan.fold.finished, pools, self._layer)
            slots = plan.fold.table.slots.flatten()
            keys.append(self._keys_at(slots, pools))
            index = plan.fold.index
        scale = config.head_dim**-0.5
        out = sparse_attention(q, torch.cat(keys), index, sink=self._sink, scale=scale)
        rope(out, rotation, inverse=True)
        y = self._wo_b(self._wo_a(out.view(tokens, self._groups, -1)))
        return self._shards.all_reduce(y)

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights under their names in files."""
        for part in (self._down, self._up, self._wo_a, self._wo_b, self._q_norm, self._kv_norm):
            yield from part.named_weights(prefix)
        yield f"{prefix}attn_sink", self._sink
        for compressor in (self._pooling, self._fold):
            if compressor is not None:
                yield from compressor.named_weights(prefix)

    def _window_keys(self, kv: Tensor, plan: AttentionPlan, pools: KvPools) -> list[Tensor]:
        """Return the row of zeros and all window keys, and write what the step saves."""
        spec, layout, window = pools.spec, pools.swa_layout, plan.window
        pages = pools.swa[self._layer]
        fresh = encode_records(kv, record_format=spec.record_format, rope_channels=spec.rope_dim)
        rows = torch.cat((gather_rows(pages, window.old_slots, layout), fresh))
        saved = rows.index_select(0, window.saves.source)
        store_rows(pages, window.saves.target, saved, layout)
        zeros = kv.new_zeros((1, spec.head_dim))
        return [zeros, self._decode(rows, pools)]

    def _chosen(
        self, q: Tensor, weights: Tensor, rotation: Tensor, plan: PoolingPlan, pools: KvPools
    ) -> tuple[Tensor, Tensor]:
        """Return the keys of blocks and the index of every token, window included."""
        table = plan.table
        slots = table.slots.flatten()
        if plan.index is not None:
            return self._keys_at(slots, pools), plan.index
        blocks = self._indexer.select(q, weights, rotation, plan, pools, layer=self._layer)
        if blocks.numel() < slots.numel():
            # Fewer choices than blocks: fetch the choices alone.
            slots = table.slots[table.row.unsqueeze(1), blocks.clamp(min=0)].flatten()
            places = torch.arange(blocks.numel(), device=q.device).view_as(blocks)
            index = pad_tile((places + plan.first_block).masked_fill_(blocks < 0, 0))
        else:
            index = table.index_of(blocks, plan.first_block)
        keys = self._keys_at(slots, pools)
        return keys, torch.cat((plan.window_index, index), 1)

    def _keys_at(self, slots: Tensor, pools: KvPools) -> Tensor:
        """Return this layer's blocks at `slots` as [M, head_dim] float32."""
        pages, layout = pools.blocks(self._layer)
        return self._decode(gather_rows(pages, slots, layout), pools)

    def _decode(self, rows: Tensor, pools: KvPools) -> Tensor:
        spec = pools.spec
        return decode_records(
            rows,
            record_format=spec.record_format,
            channels=spec.head_dim,
            rope_channels=spec.rope_dim,
        )
