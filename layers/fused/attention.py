"""Attention of one layer over fused ops; the counterpart of `layers.attention.Attention`.

The layer multiplies and norms; where tokens read and write is the step's business (`FusedStep`),
so that decoding rows and chunks share every line of this.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from jit_kernels.out_rope_quant import out_rope_quant
from jit_kernels.q_norm_rope import q_norm_rope
from jit_kernels.quant_fp8 import norm_quant, quantise_rows
from layers.config import ModelConfig
from layers.fused.linear import Bf16Linear, Fp8GroupedLinear, Fp8Linear
from layers.fused.step import FoldWeights, FusedStep, PoolingWeights
from layers.norm import RmsNorm
from layers.parallel import Shards
from layers.weight_target import WeightTarget
from mem_cache.layout import StateLayout

__all__ = ["FusedAttention"]


class FusedAttention:
    """Projections of one layer: fp8 weights as stored, compressors in bfloat16."""

    def __init__(
        self, config: ModelConfig, layer: int, *, shards: Shards, device: torch.device
    ) -> None:
        """Allocate the weights of layer `layer`."""
        self._config, self._layer, self._shards = config, layer, shards
        self._ratio = config.compress_ratios[layer]
        self._heads = shards.share(config.num_attention_heads)
        self._groups = shards.share(config.o_groups)
        width, rank, eps = config.head_dim, config.q_lora_rank, config.rms_norm_eps
        self._down = Fp8Linear(config.hidden_size, {"wq_a": rank, "wkv": width}, device=device)
        up = {"wq_b": self._heads * width}
        if self._ratio == 4:
            up["indexer.wq_b"] = config.index_n_heads * config.index_head_dim
        self._up = Fp8Linear(rank, up, device=device)
        self._q_norm = RmsNorm(rank, eps=eps, name="q_norm", device=device)
        self._kv_norm = RmsNorm(width, eps=eps, name="kv_norm", device=device)
        self._sink = torch.zeros(self._heads, dtype=torch.float32, device=device)
        self._wo_a = Fp8GroupedLinear(
            self._groups,
            config.o_lora_rank,
            self._heads // self._groups * width,
            name="wo_a",
            device=device,
        )
        self._wo_b = Fp8Linear(
            self._groups * config.o_lora_rank, {"wo_b": config.hidden_size}, device=device
        )
        self._compressor = _compressor(config, self._ratio, device)

    def __call__(self, x: Tensor, step: FusedStep) -> Tensor:
        """Attend and return [T, d] bfloat16; `step` writes the pools.

        x  [T, d] bfloat16, normed
        """
        config, tokens, layer = self._config, x.shape[0], self._layer
        rotation = step.rotation(compressed=self._ratio > 0)
        down = self._down(*quantise_rows(x), out_dtype=torch.float32)
        low, kv = down.split([config.q_lora_rank, config.head_dim], 1)
        step.store_window(layer, kv, self._kv_norm.weight)
        up = self._up(*norm_quant(low, self._q_norm.weight, eps=config.rms_norm_eps))
        q = up[:, : self._heads * config.head_dim].unflatten(1, (self._heads, config.head_dim))
        if self._compressor is not None:
            queries = up[:, self._heads * config.head_dim :]
            self._compressor.advance(x, queries, step, layer)
        q = q_norm_rope(q, rotation, eps=config.rms_norm_eps)
        del up
        out = step.attend(layer, q, self._sink)
        y = self._wo_a(*out_rope_quant(out, rotation, groups=self._groups))
        y = self._wo_b(*quantise_rows(y.view(tokens, -1)))
        return self._shards.all_reduce(y)

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Tensor | WeightTarget]]:
        """Yield the weights under their names in files."""
        for part in (self._down, self._up, self._wo_a, self._wo_b, self._q_norm, self._kv_norm):
            yield from part.named_weights(prefix)
        yield f"{prefix}attn_sink", self._sink
        if self._compressor is not None:
            yield from self._compressor.named_weights(prefix)


class _Pooling:
    """Blocks of 4 and their indexer: one product makes state rows and the head weights."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        main, index = 2 * config.head_dim, 2 * config.index_head_dim
        self._heads, self._width = config.index_n_heads, config.index_head_dim
        self._layout = layout = StateLayout(config.head_dim, config.index_head_dim)
        self._rows = Bf16Linear(
            config.hidden_size,
            {
                "compressor.wkv": main,
                "compressor.wgate": main,
                "indexer.compressor.wkv": index,
                "indexer.compressor.wgate": index,
                "indexer.weights_proj": config.index_n_heads,
            },
            device=device,
        )
        eps = config.rms_norm_eps
        self._norm = RmsNorm(config.head_dim, eps=eps, name="compressor.norm", device=device)
        self._index_norm = RmsNorm(
            config.index_head_dim, eps=eps, name="indexer.compressor.norm", device=device
        )
        ape = torch.zeros((4, layout.width), dtype=torch.float32, device=device)
        self._weights = PoolingWeights(ape, self._norm.weight, self._index_norm.weight)

    def advance(self, x: Tensor, queries: Tensor, step: FusedStep, layer: int) -> None:
        """Write what the tokens leave, then choose what they attend."""
        rows = self._rows(x)
        state, weights = rows.split([self._layout.width, self._heads], 1)
        step.pool(layer, state, self._weights)
        step.choose(layer, queries.unflatten(1, (self._heads, self._width)), weights)

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        for part in (self._rows, self._norm, self._index_norm):
            yield from part.named_weights(prefix)
        main, index = self._layout.main[1], self._layout.index[1]
        ape = self._weights.ape
        yield f"{prefix}compressor.ape", ape[:, main : main + 2 * self._layout.head_dim]
        yield f"{prefix}indexer.compressor.ape", ape[:, index:]


class _Fold:
    """Blocks of 128."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._width = width = config.head_dim
        self._rows = Bf16Linear(
            config.hidden_size,
            {"compressor.wkv": width, "compressor.wgate": width},
            device=device,
        )
        self._norm = RmsNorm(width, eps=config.rms_norm_eps, name="compressor.norm", device=device)
        ape = torch.zeros((128, 2 * width), dtype=torch.float32, device=device)
        self._weights = FoldWeights(ape, self._norm.weight)

    def advance(self, x: Tensor, queries: Tensor, step: FusedStep, layer: int) -> None:
        """Write what the tokens leave; every block is attended, `queries` has no columns."""
        step.fold(layer, self._rows(x), self._weights)

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        yield from self._rows.named_weights(prefix)
        yield from self._norm.named_weights(prefix)
        yield f"{prefix}compressor.ape", self._weights.ape[:, self._width :]


def _compressor(config: ModelConfig, ratio: int, device: torch.device) -> _Pooling | _Fold | None:
    """Return what a layer of this ratio compresses with."""
    if ratio == 4:
        return _Pooling(config, device)
    return _Fold(config, device) if ratio == 128 else None
