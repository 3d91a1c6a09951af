"""The DeepSeek V4 network: embedding, layers, head."""

from collections.abc import Iterator

import torch
from torch import Tensor

from layers.blocks.embedding import VocabTable
from layers.blocks.hyper_connection import BlockResult, HyperConnection, HyperHead
from layers.blocks.norm import RmsNorm
from layers.blocks.rope import RopeFrequencies
from layers.experts.plain import Experts
from layers.models.deepseek_v4.config import ModelConfig
from layers.models.deepseek_v4.reference_attention import Attention
from layers.parallel.shares import Shards
from layers.steps.forward_batch import ForwardBatch, Forwarded, finite_rows
from layers.steps.reference.attention_plan import AttentionPlan, plan_attention
from mem_cache.pools import KvPools

__all__ = ["DeepseekV4", "Layer"]


class Layer:
    """Attention, then experts; each between a norm and the streams' mixing."""

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
        width, eps = config.hidden_size, config.rms_norm_eps
        self._attention_mix = HyperConnection(config, name="hc_attn", device=device)
        self._attention_norm = RmsNorm(width, eps=eps, name="attn_norm", device=device)
        self._attention = Attention(config, layer, shards=shards, dtype=dtype, device=device)
        self._experts_mix = HyperConnection(config, name="hc_ffn", device=device)
        self._experts_norm = RmsNorm(width, eps=eps, name="ffn_norm", device=device)
        self._experts = Experts(config, layer, shards=shards, dtype=dtype, device=device)

    def __call__(self, before: BlockResult, plan: AttentionPlan, pools: KvPools) -> BlockResult:
        """Return what the experts make.

        before  what the layer before made, or embeddings
        """
        x, streams, shares = self._attention_mix.pre_norm(before, self._attention_norm)
        attended = BlockResult(self._attention(x, plan, pools), streams, shares)
        x, streams, shares = self._experts_mix.pre_norm(attended, self._experts_norm)
        return BlockResult(self._experts(x, plan.input_ids), streams, shares)

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights under their names in files."""
        yield from self._attention_mix.named_weights(prefix)
        yield from self._attention_norm.named_weights(prefix)
        yield from self._attention.named_weights(f"{prefix}attn.")
        yield from self._experts_mix.named_weights(prefix)
        yield from self._experts_norm.named_weights(prefix)
        yield from self._experts.named_weights(f"{prefix}ffn.")


class DeepseekV4:
    """The whole network on one device; a row's result does not depend on its company.

    The same token at the same position after the same tokens gives the same bits, whatever the
    chunks, the other rows, and what was reused instead of computed.
    """

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        """Allocate all weights.

        dtype  of matrices and activations, float32 or bfloat16; gates, compressors, norms and
               stream mixing are float32 in any case
        """
        self.config = config
        shards = Shards()
        vocab, width = config.vocab_size, config.hidden_size
        self._rope = RopeFrequencies(config, device)
        self._embedding = VocabTable(vocab, width, name="embed", dtype=dtype, device=device)
        self._layers = [
            Layer(config, layer, shards=shards, dtype=dtype, device=device)
            for layer in range(config.num_hidden_layers)
        ]
        self._head_mix = HyperHead(config, name="hc_head", device=device)
        self._norm = RmsNorm(width, eps=config.rms_norm_eps, name="norm", device=device)
        self._head = VocabTable(vocab, width, name="head", dtype=dtype, device=device)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, pools: KvPools) -> Forwarded:
        """Run one step; return the logits of `batch.logit_tokens`, and which rows are finite.

        Finished records, windows and compress states are written to `pools`.
        """
        plan = plan_attention(batch, pools.spec, self.config, self._rope)
        result = self._embedding.embed(batch.input_ids, streams=self.config.hc_mult)
        for layer in self._layers:
            result = layer(result, plan, pools)
        finite = finite_rows(result.finite(), plan.row, batch.chunk_len)
        streams = result.of(batch.logit_tokens).mixed()
        return Forwarded(self._head.logits(self._norm(self._head_mix(streams))), finite)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name in published files, writable view of the dense shape) of every weight."""
        yield from self._embedding.named_weights()
        for i, layer in enumerate(self._layers):
            yield from layer.named_weights(f"layers.{i}.")
        yield from self._head_mix.named_weights()
        yield from self._norm.named_weights("")
        yield from self._head.named_weights()
