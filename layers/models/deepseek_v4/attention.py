"""Attention of one layer over fused ops; the counterpart of `layers.models.deepseek_v4.reference_attention.Attention`.

The layer multiplies and norms; where tokens read and write is the step's business (`FusedStep`),
so that decoding rows and chunks share every line of this. The rows of the grouped output projection
are rounded to e4m3, where the published code multiplies bfloat16 (NETWORK.md, 7).
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from jit_kernels.out_rope_quant import out_rope_quant
from jit_kernels.q_norm_rope import q_norm_rope
from layers.blocks.norm import RmsNorm
from layers.blocks.side_stream import SideStream
from layers.linear.quantised import Fp8GroupedLinear, Fp8Linear, Fp8Rows, Product
from layers.models.deepseek_v4.compressor import compressor_of
from layers.models.deepseek_v4.config import ModelConfig
from layers.parallel.shares import Shards
from layers.steps.contract import FusedStep, TokenInputs
from layers.weights.weight_target import WeightTarget

__all__ = ["FusedAttention"]


class FusedAttention:
    """Projections of one layer: fp8 weights as stored, compressors in bfloat16."""

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        *,
        shards: Shards,
        device: torch.device,
        side: SideStream | None = None,
        deterministic: bool = False,
    ) -> None:
        """Allocate the weights of layer `layer`.

        side           where compressor and indexer run beside the queries; None: its own
        deterministic  a token's bits do not depend on how many tokens there are
        """
        self._config, self._layer, self._shards = config, layer, shards
        self.ratio = config.compress_ratios[layer]
        self._heads = shards.share(config.num_attention_heads)
        self._groups = shards.share(config.o_groups)
        width, rank, eps = config.head_dim, config.q_lora_rank, config.rms_norm_eps
        linear = partial(Fp8Linear, device=device, invariant=deterministic)
        self._fp8_rows = partial(Fp8Rows, invariant=deterministic)
        self._down = linear(config.hidden_size, {"wq_a": rank, "wkv": width})
        self._up = linear(rank, {"wq_b": self._heads * width})
        self._q_norm = RmsNorm(rank, eps=eps, name="q_norm", device=device)
        self._kv_norm = RmsNorm(width, eps=eps, name="kv_norm", device=device)
        self._sink = torch.zeros(self._heads, dtype=torch.float32, device=device)
        self._wo_a = Fp8GroupedLinear(
            self._groups,
            config.o_lora_rank,
            self._heads // self._groups * width,
            name="wo_a",
            device=device,
            invariant=deterministic,
        )
        self._wo_b = linear(self._groups * config.o_lora_rank, {"wo_b": config.hidden_size})
        self._compressor = compressor_of(config, self.ratio, device, deterministic)
        self._side = side or SideStream(device)

    def __call__(self, x: Tensor, step: FusedStep) -> Tensor:
        """Attend and return [T, d] bfloat16; `step` writes the pools.

        x  [T, d] bfloat16, normed
        """
        tokens, parts = x.shape[0], ()
        rows = self._fp8_rows(x)
        if self._compressor is not None:
            # Beside the chain of small steps that all else waits for; its first product goes first.
            with self._side.beside(tokens):
                parts = (self._compressor.rows(x),)
                self._compressor.write(parts, step, self._layer)
        low, kv = self._low_and_kv(rows)
        # Behind the compressor's product it would come too late.
        with self._side.beside(tokens, branch=1):
            step.store_window(self._layer, kv, self._kv_norm.weight)
        latent, settled = self._latent(low), True
        if self.ratio == 4:
            q, settled = self._queries_and_choice(latent, parts, step)
        else:
            q = self._queries(latent, step)
        groups = self._groups
        return self._output(
            *step.attend_quant(self._layer, q, self._sink, groups=groups, settled=settled)
        )

    def project(self, x: Tensor, tokens: TokenInputs) -> tuple[Tensor, ...]:
        """Return what `attend` takes of tokens: q [T, H, 512] and kv [T, 512], bfloat16, and more.

        x  [T, d] bfloat16, normed

        With `attend` and `finish` it does what a call does, but apart from the pools: each token
        by itself. What comes after kv is the compressor's.
        """
        parts: tuple[Tensor, ...] = ()
        if self._compressor is not None:
            with self._side.beside(x.shape[0]):
                parts = (self._compressor.rows(x),)
        low, kv = self._low_and_kv(self._fp8_rows(x))
        latent = self._latent(low)
        if self._compressor is not None:
            with self._side.beside(x.shape[0]):
                parts += self._compressor.queries(latent)
        q = self._queries(latent, tokens)
        return (q, kv, *parts)

    def attend(self, projected: tuple[Tensor, ...], step: FusedStep) -> Tensor:
        """Return what tokens read, [T, H, 512] bfloat16; `step` writes the pools.

        projected  from `project`
        """
        q, kv, *parts = projected
        step.store_window(self._layer, kv, self._kv_norm.weight)
        if self._compressor is not None:
            self._compressor.write(parts, step, self._layer)
            self._compressor.score(parts, step, self._layer)
            step.choose(self._layer)
        return step.attend(self._layer, q, self._sink)

    def finish(self, out: Tensor, tokens: TokenInputs) -> Tensor:
        """Return the layer's result, [T, d] bfloat16.

        out  [T, H, 512] bfloat16, what tokens have read
        """
        rotation = tokens.rotation(compressed=self.ratio > 0)
        return self._output(*out_rope_quant(out, rotation, groups=self._groups))

    def products(self) -> Iterator[Product]:
        """Yield what the layer multiplies by."""
        yield from (self._down, self._up, self._wo_a, self._wo_b)
        if self._compressor is not None:
            yield from self._compressor.products()

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Tensor | WeightTarget]]:
        """Yield the weights under their names in files."""
        for part in (self._down, self._up, self._wo_a, self._wo_b, self._q_norm, self._kv_norm):
            yield from part.named_weights(prefix)
        yield f"{prefix}attn_sink", self._sink
        if self._compressor is not None:
            yield from self._compressor.named_weights(prefix)

    def _output(self, codes: Tensor, scales: Tensor) -> Tensor:
        y = self._wo_a(codes, scales)
        y = self._wo_b.of(self._fp8_rows(y.view(codes.shape[0], -1)))
        return self._shards.all_reduce(y)

    def _low_and_kv(self, rows: Fp8Rows) -> tuple[Tensor, ...]:
        config = self._config
        return self._down.of(rows).split([config.q_lora_rank, config.head_dim], 1)

    def _latent(self, low: Tensor) -> Fp8Rows:
        return self._fp8_rows(low, self._q_norm.weight, eps=self._config.rms_norm_eps)

    def _queries_and_choice(
        self, latent: Fp8Rows, parts: tuple[Tensor, ...], step: FusedStep
    ) -> tuple[Tensor, bool]:
        """Return the queries, made while the blocks that they attend are chosen.

        A choice takes few processors for long, if only it finds them free; queries take memory for
        as long. Scores take memory as well, so queries come after them. Also returns whether the
        choice is settled when attention begins.
        """
        assert self._compressor is not None
        parts += self._compressor.queries(latent)
        self._side.join()
        self._compressor.score(parts, step, self._layer)
        if latent.rounded is None:
            # The product needs nothing of the choice, and begins when that has its processors.
            step.choose(self._layer, next_settled=True)
            return self._turned(self._up.of(latent, settled=True), step), True
        with self._side.beside(parts[0].shape[0]):
            q = self._turned(self._up.of(latent), step)
        step.choose(self._layer)
        self._side.join()
        return q, False

    def _queries(self, latent: Fp8Rows, tokens: TokenInputs) -> Tensor:
        """Return the queries; what was begun beside has ended then."""
        q = self._up.of(latent)
        # In a step it is attention that comes next, and it begins early if it waits for one launch.
        self._side.join()
        return self._turned(q, tokens)

    def _turned(self, q: Tensor, tokens: TokenInputs) -> Tensor:
        config, rotation = self._config, tokens.rotation(compressed=self.ratio > 0)
        q = q.view(-1, self._heads, config.head_dim)
        return q_norm_rope(q, rotation, eps=config.rms_norm_eps)
