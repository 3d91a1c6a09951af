"""Compressors of a layer over fused ops: what blocks of tokens leave, and which are attended."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from layers.blocks.norm import RmsNorm
from layers.linear.quantised import Bf16Linear, Fp8Linear, Fp8Rows, Product
from layers.models.deepseek_v4.config import ModelConfig
from layers.steps.contract import FoldWeights, FusedStep, PoolingWeights
from layers.weights.weight_target import WeightTarget
from mem_cache.layout import StateLayout

__all__ = ["Fold", "Pooling", "compressor_of"]


class Pooling:
    """Blocks of 4 and their indexer: one product makes state rows and the head weights.

    The indexer's queries are a product of their own: beside those of the heads they would stand
    apart in memory, and cost a copy of all of them.
    """

    def __init__(self, config: ModelConfig, device: torch.device, deterministic: bool) -> None:
        """Allocate the weights; `deterministic` as in `FusedAttention`."""
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
            invariant=deterministic,
        )
        self._queries = Fp8Linear(
            config.q_lora_rank,
            {"indexer.wq_b": config.index_n_heads * config.index_head_dim},
            device=device,
            invariant=deterministic,
        )
        eps = config.rms_norm_eps
        self._norm = RmsNorm(config.head_dim, eps=eps, name="compressor.norm", device=device)
        self._index_norm = RmsNorm(
            config.index_head_dim, eps=eps, name="indexer.compressor.norm", device=device
        )
        ape = torch.zeros((4, layout.width), dtype=torch.float32, device=device)
        self._weights = PoolingWeights(ape, self._norm.weight, self._index_norm.weight)

    def rows(self, x: Tensor) -> Tensor:
        """Return state rows beside weights of the indexer's heads."""
        return self._rows(x)

    def queries(self, latent: Fp8Rows) -> tuple[Tensor, ...]:
        """Return the queries of the indexer's heads."""
        return (self._queries.of(latent).view(-1, self._heads, self._width),)

    def write(self, parts: Sequence[Tensor], step: FusedStep, layer: int) -> None:
        """Write what the tokens leave; of `parts` it takes the rows."""
        step.pool(layer, parts[0][:, : self._layout.width], self._weights)

    def score(self, parts: Sequence[Tensor], step: FusedStep, layer: int) -> None:
        """Score what the tokens may attend, after `write`; `parts` are rows and queries."""
        rows, queries = parts
        step.score(layer, queries, rows[:, self._layout.width :])

    def products(self) -> Iterator[Product]:
        """Yield what it multiplies by."""
        yield from (self._rows, self._queries)

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Tensor | WeightTarget]]:
        """Yield the weights under their names in files."""
        for part in (self._rows, self._queries, self._norm, self._index_norm):
            yield from part.named_weights(prefix)
        main, index = self._layout.main[1], self._layout.index[1]
        ape = self._weights.ape
        yield f"{prefix}compressor.ape", ape[:, main : main + 2 * self._layout.head_dim]
        yield f"{prefix}indexer.compressor.ape", ape[:, index:]


class Fold:
    """Blocks of 128."""

    def __init__(self, config: ModelConfig, device: torch.device, deterministic: bool) -> None:
        """Allocate the weights; `deterministic` as in `FusedAttention`."""
        self._width = width = config.head_dim
        self._rows = Bf16Linear(
            config.hidden_size,
            {"compressor.wkv": width, "compressor.wgate": width},
            device=device,
            invariant=deterministic,
        )
        self._norm = RmsNorm(width, eps=config.rms_norm_eps, name="compressor.norm", device=device)
        ape = torch.zeros((128, 2 * width), dtype=torch.float32, device=device)
        self._weights = FoldWeights(ape, self._norm.weight)

    def rows(self, x: Tensor) -> Tensor:
        """Return state rows."""
        return self._rows(x)

    def queries(self, latent: Fp8Rows) -> tuple[Tensor, ...]:
        """Return none: every block is attended."""
        return ()

    def write(self, parts: Sequence[Tensor], step: FusedStep, layer: int) -> None:
        """Write what the tokens leave."""
        step.fold(layer, parts[0], self._weights)

    def score(self, parts: Sequence[Tensor], step: FusedStep, layer: int) -> None:
        """Score nothing: every block is attended."""

    def products(self) -> Iterator[Product]:
        """Yield what it multiplies by."""
        yield self._rows

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights under their names in files."""
        yield from self._rows.named_weights(prefix)
        yield from self._norm.named_weights(prefix)
        yield f"{prefix}compressor.ape", self._weights.ape[:, self._width :]


def compressor_of(
    config: ModelConfig, ratio: int, device: torch.device, deterministic: bool
) -> Pooling | Fold | None:
    """Return what a layer of this ratio compresses with."""
    if ratio == 4:
        return Pooling(config, device, deterministic)
    return Fold(config, device, deterministic) if ratio == 128 else None
