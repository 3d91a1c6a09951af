"""A step in plain torch: any device, any geometry, any record format.

Each layer attends over one list of keys, which `attention_plan` describes. Every key passes through
the format of the pools before it is used, so that a token reads the same numbers whether they were
computed in this step or earlier.
"""

import torch
from torch import Tensor

from jit_kernels.compress_kv import fold_blocks, pool_members
from jit_kernels.kv_records import decode_records, encode_records
from jit_kernels.paged_rows import gather_rows, store_rows
from jit_kernels.rms_norm import rms_norm
from jit_kernels.rope import rope
from jit_kernels.sparse_attention import sparse_attention
from layers.blocks.rope import RopeFrequencies
from layers.models.deepseek_v4.layout import state_layout
from layers.models.deepseek_v4.pools import KvPools
from layers.steps.contract import FoldWeights, PoolingWeights, StepSizes
from layers.steps.forward_batch import ForwardBatch, finite_rows
from layers.steps.reference.attention_plan import plan_attention
from layers.steps.reference.compression_plan import FinishedBlocks, pad_tile
from layers.steps.reference.indexer import choose_blocks, store_keys

__all__ = ["ReferenceStep"]


class ReferenceStep:
    """One step of chunks; a `Step`."""

    def __init__(
        self, batch: ForwardBatch, pools: KvPools, sizes: StepSizes, rope: RopeFrequencies
    ) -> None:
        """Derive what the layers share; the batch is on the device of the pools."""
        self._batch, self._pools, self._sizes = batch, pools, sizes
        live = pools.sizes.live_states
        self._plan = plan_attention(batch, pools.spec, live=live, top_k=sizes.top_k, rope=rope)
        # Of the layer at work: keys of the window, then of blocks; what each token attends of them.
        self._keys: list[Tensor] = []
        self._index = self._plan.window.index
        self._chosen: Tensor | None = None

    @property
    def input_ids(self) -> Tensor:
        """Return the tokens, [T] int64."""
        return self._batch.input_ids

    @property
    def logit_tokens(self) -> Tensor:
        """Return which of the tokens logits are wanted of, [k] int64."""
        return self._batch.logit_tokens

    def finite_rows(self, tokens: Tensor) -> Tensor:
        """Return which rows have only finite tokens, [n] bool.

        tokens  [T] bool   finite or not
        """
        return finite_rows(tokens, self._plan.row, self._batch.chunk_len)

    def rotation(self, *, compressed: bool) -> Tensor:
        """Return [T, 2, R] float32; see `Step`."""
        found = self._plan.compressed_rotation if compressed else self._plan.rotation
        assert found is not None
        return found

    def store_window(self, layer: int, kv: Tensor, weight: Tensor) -> None:
        """Fetch the window's keys, and write what the step saves; see `Step`."""
        pools, window = self._pools, self._plan.window
        pages, layout = pools.swa[layer], pools.swa_layout
        kv = rms_norm(kv.contiguous(), weight, eps=self._sizes.eps, out_dtype=torch.float32)
        rope(kv.unsqueeze(1), self.rotation(compressed=pools.spec.layer_ratios[layer] > 0))
        rows = torch.cat((gather_rows(pages, window.old_slots, layout), self._encoded(kv)))
        saved = rows.index_select(0, window.saves.source)
        store_rows(pages, window.saves.target, saved, layout)
        zeros = kv.new_zeros((1, pools.spec.head_dim))
        self._keys, self._index = [zeros, self._decoded(rows)], window.index

    def pool(self, layer: int, rows: Tensor, weights: PoolingWeights) -> None:
        """Advance a layer that compresses by 4; see `Step`."""
        pools, plan, eps = self._pools, self._plan.pooling, self._sizes.eps
        assert plan is not None
        columns, old = state_layout(pools.spec), plan.old_rows.shape[0]
        state = pools.c4_state[pools.nth(layer)].view(-1, columns.width)
        known = rows.new_empty((old + rows.shape[0], columns.width))
        known[:old] = state.index_select(0, plan.old_rows)
        torch.add(rows, weights.ape.index_select(0, plan.phase), out=known[old:])
        state.index_copy_(0, plan.saves.target, known.index_select(0, plan.saves.source))
        if not plan.members.shape[0]:
            return

        def pooled(first: tuple[int, int], width: int, norm: Tensor) -> Tensor:
            kv, gate = first
            mean = pool_members(known, plan.members, kv=kv, gate=gate, width=width)
            return self._turned(rms_norm(mean, norm, eps=eps), plan.finished)

        records = pooled(columns.main, columns.head_dim, weights.norm)
        self._store_blocks(layer, records, plan.finished)
        keys = pooled(columns.index, columns.index_head_dim, weights.index_norm)
        store_keys(keys, plan.finished, pools, layer)

    def fold(self, layer: int, rows: Tensor, weights: FoldWeights) -> None:
        """Advance a layer that compresses by 128; see `Step`."""
        pools, plan = self._pools, self._plan.fold
        assert plan is not None
        width = pools.spec.head_dim
        rows = (rows + weights.ape.index_select(0, plan.phase)).index_select(0, plan.order)
        bank = pools.c128_state[pools.nth(layer)].flatten(0, 1)
        empty = rows.new_zeros((1, 3, width))
        empty[:, 0] = -torch.inf
        start = bank.index_select(0, plan.start_banks)
        start = torch.where(plan.start_empty.view(-1, 1, 1), empty, start)
        states = fold_blocks(rows[:, :width], rows[:, width:], start, active=plan.active)
        known = torch.cat((bank.index_select(0, plan.old_banks), states))
        bank.index_copy_(0, plan.saves.target, known.index_select(0, plan.saves.source))
        if not plan.members.shape[0]:
            return
        ended = states.index_select(0, plan.members)
        records = rms_norm(ended[:, 2] / ended[:, 1], weights.norm, eps=self._sizes.eps)
        self._store_blocks(layer, self._turned(records, plan.finished), plan.finished)

    def score(self, layer: int, q: Tensor, weights: Tensor) -> None:
        """Find the best blocks of 4 where tokens see more than they attend; see `Step`."""
        plan = self._plan.pooling
        assert plan is not None
        if plan.index is None:
            rotation = self.rotation(compressed=True)
            self._chosen = choose_blocks(
                q, weights, rotation, plan.table, self._pools, layer=layer, top_k=self._sizes.top_k
            )

    def choose(self, layer: int) -> None:
        """Do nothing: `score` has found them; see `Step`."""

    def attend(self, layer: int, q: Tensor, sink: Tensor) -> Tensor:
        """Attend window and blocks; see `Step`."""
        ratio = self._pools.spec.layer_ratios[layer]
        if ratio == 128:
            fold = self._plan.fold
            assert fold is not None
            self._keys.append(self._keys_at(layer, fold.table.slots.flatten()))
            self._index = fold.index
        elif ratio == 4:
            self._take_chosen(layer)
        keys, self._keys = torch.cat(self._keys), []
        scale = self._pools.spec.head_dim**-0.5
        return sparse_attention(q, keys, self._index, sink=sink, scale=scale)

    def _take_chosen(self, layer: int) -> None:
        """Fetch blocks of 4, and say which of them every token attends."""
        plan, blocks = self._plan.pooling, self._chosen
        assert plan is not None
        table, slots = plan.table, plan.table.slots.flatten()
        self._chosen = None
        if plan.index is not None:
            self._index = plan.index
        else:
            assert blocks is not None
            if blocks.numel() < slots.numel():
                # Fewer choices than blocks: fetch the choices alone.
                slots = table.slots[table.row.unsqueeze(1), blocks.clamp(min=0)].flatten()
                places = torch.arange(blocks.numel(), device=blocks.device).view_as(blocks)
                index = pad_tile((places + plan.first_block).masked_fill_(blocks < 0, 0))
            else:
                index = table.index_of(blocks, plan.first_block)
            self._index = torch.cat((plan.window_index, index), 1)
        self._keys.append(self._keys_at(layer, slots))

    def _turned(self, records: Tensor, finished: FinishedBlocks) -> Tensor:
        rope(records.unsqueeze(1), finished.rotation)
        return records

    def _store_blocks(self, layer: int, records: Tensor, finished: FinishedBlocks) -> None:
        pages, layout = self._pools.blocks(layer)
        store_rows(pages, finished.slots, self._encoded(records), layout)

    def _keys_at(self, layer: int, slots: Tensor) -> Tensor:
        """Return a layer's blocks at `slots` as [M, head_dim] float32."""
        pages, layout = self._pools.blocks(layer)
        return self._decoded(gather_rows(pages, slots, layout))

    def _encoded(self, records: Tensor) -> Tensor:
        spec = self._pools.spec
        return encode_records(
            records, record_format=spec.record_format, rope_channels=spec.rope_dim
        )

    def _decoded(self, rows: Tensor) -> Tensor:
        spec = self._pools.spec
        return decode_records(
            rows,
            record_format=spec.record_format,
            channels=spec.head_dim,
            rope_channels=spec.rope_dim,
        )
