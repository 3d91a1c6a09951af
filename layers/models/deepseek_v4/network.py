"""The DeepSeek V4 network, wired once: attention, experts, layers, head.

What is multiplied, and in which format, is the business of kinds (`layers.kinds`); where tokens
read and write is that of a step (`layers.steps.contract`). So the equations of `layers/NETWORK.md`
stand here in one order, for the reference on any device and for steps of decoding rows and of
chunks on a GPU.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from jit_kernels.q_norm_rope import q_norm_rope
from layers.blocks.embedding import Embedding
from layers.blocks.hyper_connection import BlockResult, HyperConnection, HyperHead, Streams
from layers.blocks.norm import RmsNorm
from layers.experts.contract import ExpertSizes
from layers.experts.router import Router
from layers.kinds import Kinds
from layers.linear.contract import Named, Rows
from layers.models.deepseek_v4.config import ModelConfig
from layers.models.deepseek_v4.layout import StateLayout
from layers.parallel.own_rows import ExpertTokens, expert_tokens
from layers.parallel.ranks import Deal, Ranks
from layers.steps.contract import FoldWeights, PoolingWeights, Step, Tokens, Writes
from layers.weights.part import part_of

__all__ = ["DeepseekV4", "Layer", "Projected"]

# What attention reads and what comes after it: queries, streams, shares.
Projected = tuple[Tensor, Tensor, Tensor]


class Pooling:
    """Blocks of 4 and their indexer (NETWORK.md, 4 and 5).

    One product makes state rows and the head weights. The indexer's queries are a product of their
    own: beside those of the heads they would stand apart in memory, and cost a copy of all of them.
    """

    def __init__(self, config: ModelConfig, kinds: Kinds) -> None:
        """Allocate the weights."""
        main, index = 2 * config.head_dim, 2 * config.index_head_dim
        self._heads, self._width = config.index_n_heads, config.index_head_dim
        self._layout = layout = StateLayout(config.head_dim, config.index_head_dim)
        self._rows = kinds.exact(
            config.hidden_size,
            {
                "compressor.wkv": main,
                "compressor.wgate": main,
                "indexer.compressor.wkv": index,
                "indexer.compressor.wgate": index,
                "indexer.weights_proj": config.index_n_heads,
            },
        )
        queries = {"indexer.wq_b": config.index_n_heads * config.index_head_dim}
        self._queries = kinds.projection(config.q_lora_rank, queries)
        device, eps = kinds.device, config.rms_norm_eps
        self._norm = RmsNorm(config.head_dim, eps=eps, name="compressor.norm", device=device)
        self._index_norm = RmsNorm(
            config.index_head_dim, eps=eps, name="indexer.compressor.norm", device=device
        )
        ape = torch.zeros((4, layout.width), dtype=torch.float32, device=device)
        self._weights = PoolingWeights(ape, self._norm.weight, self._index_norm.weight)

    def write(self, x: Tensor, step: Writes, layer: int) -> Tensor:
        """Write what the tokens leave; return weights of the indexer's heads, [T, Hi]."""
        rows = self._rows(self._rows.rows(x))
        step.pool(layer, rows[:, : self._layout.width], self._weights)
        return rows[:, self._layout.width :]

    def queries(self, latent: Rows) -> Tensor:
        """Return the queries of the indexer's heads, [T, Hi, C]."""
        return self._queries(latent).view(-1, self._heads, self._width)

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        for part in (self._rows, self._queries, self._norm, self._index_norm):
            yield from part.named_weights(prefix)
        main, index = self._layout.main[1], self._layout.index[1]
        ape = self._weights.ape
        yield f"{prefix}compressor.ape", ape[:, main : main + 2 * self._layout.head_dim]
        yield f"{prefix}indexer.compressor.ape", ape[:, index:]


class Fold:
    """Blocks of 128 (NETWORK.md, 4)."""

    def __init__(self, config: ModelConfig, kinds: Kinds) -> None:
        """Allocate the weights."""
        self._width = width = config.head_dim
        parts = {"compressor.wkv": width, "compressor.wgate": width}
        self._rows = kinds.exact(config.hidden_size, parts)
        self._norm = RmsNorm(
            width, eps=config.rms_norm_eps, name="compressor.norm", device=kinds.device
        )
        ape = torch.zeros((128, 2 * width), dtype=torch.float32, device=kinds.device)
        self._weights = FoldWeights(ape, self._norm.weight)

    def write(self, x: Tensor, step: Writes, layer: int) -> Tensor:
        """Write what the tokens leave; return the rows that it was made of."""
        rows = self._rows(self._rows.rows(x))
        step.fold(layer, rows, self._weights)
        return rows

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        yield from self._rows.named_weights(prefix)
        yield from self._norm.named_weights(prefix)
        yield f"{prefix}compressor.ape", self._weights.ape[:, self._width :]


class Attention:
    """Multi-query attention with one key for all heads, which is its own value (NETWORK.md, 3)."""

    def __init__(self, config: ModelConfig, layer: int, kinds: Kinds, ranks: Ranks) -> None:
        """Allocate the weights of layer `layer`."""
        self._config, self._layer, self._side = config, layer, kinds.side
        self._ratio = config.compress_ratios[layer]
        width, rank, device = config.head_dim, config.q_lora_rank, kinds.device
        heads = ranks.shares.heads(config.num_attention_heads)
        groups = ranks.shares.groups(config.o_groups)
        self._down = kinds.projection(config.hidden_size, {"wq_a": rank, "wkv": width})
        self._q_norm = RmsNorm(rank, eps=config.rms_norm_eps, name="q_norm", device=device)
        self._kv_norm = RmsNorm(width, eps=config.rms_norm_eps, name="kv_norm", device=device)
        self._up = kinds.projection(rank, {"wq_b": heads.times(width)})
        self._heads = heads
        self.sink = torch.zeros(heads.count, dtype=torch.float32, device=device)
        each = config.num_attention_heads // config.o_groups * width
        self._wo_a = kinds.grouped(groups, config.o_lora_rank, each, name="wo_a")
        self._wo_b = kinds.projection(
            groups.times(config.o_lora_rank), {"wo_b": config.hidden_size}
        )
        self._compressor = None
        if self._ratio:
            self._compressor = (Pooling if self._ratio == 4 else Fold)(config, kinds)

    def project(self, x: Tensor, step: Writes) -> Tensor:
        """Write what tokens leave for others; return their queries [T, H, D], normed and turned.

        x  [T, d] normed input

        With few tokens the order is that of a chain of small launches: what is long and waited for
        last goes beside it.
        """
        tokens, layer, config = x.shape[0], self._layer, self._config
        beside, compressor = self._side.beside, self._compressor
        rows, head_weights = self._down.rows(x), x
        if compressor is not None:
            with beside(tokens):
                head_weights = compressor.write(x, step, layer)
        low, kv = self._down(rows).split([config.q_lora_rank, config.head_dim], 1)
        # Behind the compressor's product it would come too late.
        with beside(tokens, branch=1):
            step.store_window(layer, kv, self._kv_norm.weight)
        latent = self._up.rows(low, self._q_norm)
        if not isinstance(compressor, Pooling):
            q = self._up(latent)
            # Attention comes next, and begins early if it waits for one launch.
            self._side.join()
            return self._turned(q, x, step)
        queries = compressor.queries(latent)
        self._side.join()
        step.score(layer, queries, head_weights)
        # A choice takes few processors for long, if only it finds them free; queries take memory
        # for as long. Scores take memory as well, so queries come after them.
        with beside(tokens):
            q = self._turned(self._up(latent), x, step)
        step.choose(layer)
        self._side.join()
        return q

    def finish(self, heads: Tensor, tokens: Tokens) -> Tensor:
        """Return this rank's part of the block's result, [T, d].

        heads  [T, H, D], what tokens have read; may be changed
        """
        y = self._wo_a(heads, tokens.rotation(compressed=self._ratio > 0))
        return self._wo_b(self._wo_b.rows(y))

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        for part in (self._down, self._up, self._wo_a, self._wo_b, self._q_norm, self._kv_norm):
            yield from part.named_weights(prefix)
        yield f"{prefix}attn_sink", part_of(self.sink, self._heads)
        if self._compressor is not None:
            yield from self._compressor.named_weights(prefix)

    def _turned(self, q: Tensor, x: Tensor, tokens: Tokens) -> Tensor:
        config, rotation = self._config, tokens.rotation(compressed=self._ratio > 0)
        q = q.view(len(x), -1, config.head_dim)
        return q_norm_rope(q, rotation, eps=config.rms_norm_eps, out_dtype=x.dtype)


class Experts:
    """Routed experts, and one that every token passes (NETWORK.md, 6)."""

    def __init__(self, config: ModelConfig, layer: int, kinds: Kinds, ranks: Ranks) -> None:
        """Allocate the weights of layer `layer`."""
        width, count = config.hidden_size, config.n_routed_experts
        self._limit, self._side = config.swiglu_limit, kinds.side
        self._router = Router(
            kinds.exact(width, {"gate": count}),
            count,
            chosen=config.num_experts_per_tok,
            scale=config.routed_scaling_factor,
            hashed_ids=config.vocab_size if layer < config.num_hash_layers else 0,
            device=kinds.device,
        )
        inner = ranks.shares.inner(config.moe_intermediate_size, blocks=kinds.blocks)
        self._routed = kinds.routed(
            ExpertSizes(
                ranks.shares.experts(count),
                width,
                inner,
                chosen=config.num_experts_per_tok,
                limit=config.swiglu_limit,
            )
        )
        self._shared_in = kinds.projection(width, {"w1": inner, "w3": inner})
        self._shared_out = kinds.projection(inner, {"w2": width})

    def __call__(self, x: Tensor, input_ids: Tensor) -> Tensor:
        """Return this rank's part of the experts' sum, [T, d].

        x          [T, d] normed input
        input_ids  [T] int64, which layers with a table route by
        """
        with self._side.beside(x.shape[0]):
            rows = self._shared_in.rows(x)
            hidden = self._shared_in(rows)
            shared = self._shared_out(self._shared_out.gated(hidden, self._limit))

        def joined() -> Tensor:
            self._side.join()
            return shared

        experts, weights = self._router(x, input_ids)
        return self._routed(x, rows, experts, weights, joined)

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        yield from self._router.named_weights(prefix)
        yield from self._routed.named_weights(prefix)
        for part in (self._shared_in, self._shared_out):
            yield from part.named_weights(f"{prefix}shared_experts.")


class Layer:
    """Attention, then experts; each between a norm and the streams' mixing (NETWORK.md, 1 and 2).

    It comes in two parts, so that attention can be apart from both: what precedes it and what
    follows it take each token by itself. Streams, shares and results are those of the tokens that
    this rank mixes.
    """

    def __init__(self, config: ModelConfig, layer: int, kinds: Kinds, ranks: Ranks) -> None:
        """Allocate the weights of layer `layer`."""
        self._side, self._layer, self._ranks, device = kinds.side, layer, ranks, kinds.device
        width, eps, streams = config.hidden_size, config.rms_norm_eps, streams_of(config)
        self._attention_mix = HyperConnection(streams, name="hc_attn", device=device)
        self._attention_norm = RmsNorm(width, eps=eps, name="attn_norm", device=device)
        self._attention = Attention(config, layer, kinds, ranks)
        self._experts_mix = HyperConnection(streams, name="hc_ffn", device=device)
        self._experts_norm = RmsNorm(width, eps=eps, name="ffn_norm", device=device)
        self._experts = Experts(config, layer, kinds, ranks)

    def before(self, result: BlockResult, step: Writes) -> Projected:
        """Write what tokens leave, and return what `attend` and `after` take.

        result  what the layer before made, or embeddings
        """
        x, streams, shares = self._attention_mix.pre_norm(result, self._attention_norm)
        # What a step derives for all layers may still be under way beside.
        self._side.join()
        x = self._ranks.deal(len(step.input_ids), x.shape[1]).every(x)
        return self._attention.project(x, step), streams, shares

    def attend(self, q: Tensor, step: Step) -> Tensor:
        """Return what tokens read, [T, H, D]."""
        return step.attend(self._layer, q, self._attention.sink)

    def after(
        self,
        heads: Tensor,
        streams: Tensor,
        shares: Tensor,
        tokens: Tokens,
        experts: ExpertTokens | None = None,
    ) -> BlockResult:
        """Return what the experts make of what tokens have read.

        experts  tokens that pass the experts, if that was asked for before
        """
        deal = self._ranks.deal(len(tokens.input_ids), streams.shape[2])
        y = deal.summed(self._attention.finish(heads, tokens)).to(streams.dtype)
        x, streams, shares = self._experts_mix.pre_norm(
            BlockResult(y, streams, shares), self._experts_norm
        )
        if experts is None:
            experts = expert_tokens(self._ranks, tokens.input_ids, streams.shape[2])
        y = self._experts(experts.deal.every(x), experts.ids)
        y = experts.deal.summed(y).to(streams.dtype)
        return BlockResult(y, streams, shares)

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        yield from self._attention_mix.named_weights(prefix)
        yield from self._attention_norm.named_weights(prefix)
        yield from self._attention.named_weights(f"{prefix}attn.")
        yield from self._experts_mix.named_weights(prefix)
        yield from self._experts_norm.named_weights(prefix)
        yield from self._experts.named_weights(f"{prefix}ffn.")


class DeepseekV4:
    """The whole network on one device."""

    def __init__(self, config: ModelConfig, kinds: Kinds, ranks: Ranks) -> None:
        """Allocate all weights that this rank holds."""
        self._ranks, device, width = ranks, kinds.device, config.hidden_size
        self._vocab = vocab = ranks.shares.vocabulary(config.vocab_size)
        self._streams = streams_of(config)
        self._embedding = Embedding(vocab, width, name="embed", dtype=kinds.dtype, device=device)
        self.layers = [
            Layer(config, layer, kinds, ranks) for layer in range(config.num_hidden_layers)
        ]
        self._head_mix = HyperHead(self._streams, name="hc_head", device=device)
        self._norm = RmsNorm(width, eps=config.rms_norm_eps, name="norm", device=device)
        self._head = kinds.head(width, {"head": vocab})

    def embedded(self, input_ids: Tensor) -> BlockResult:
        """Return what the first layer takes of tokens [T] int64."""
        return self._embedding.streams(input_ids, self._streams.count, self._deal(input_ids))

    def whole(self, result: BlockResult, input_ids: Tensor) -> BlockResult:
        """Return what the last layer made of all tokens [T] int64, on each rank."""
        deal = self._deal(input_ids)
        return BlockResult(*(deal.every(part) for part in result.take()))

    def run(
        self,
        step: Step,
        halfway: Callable[[], None] | None = None,
        counts: Sequence[int] | None = None,
    ) -> BlockResult:
        """Return what the last layer makes; `step` writes the pools.

        halfway  called when half of the layers are launched
        counts   tokens of each rank, where each has its own rows; None: all have as many
        """
        experts = expert_tokens(self._ranks, step.input_ids, self._streams.width, counts)
        result = self.embedded(step.input_ids)
        for layer in self.announced(halfway):
            q, streams, shares = layer.before(result, step)
            result = layer.after(layer.attend(q, step), streams, shares, step, experts)
        return self.whole(result, step.input_ids)

    def announced(self, halfway: Callable[[], None] | None) -> Iterator[Layer]:
        """Yield the layers; `halfway` is called between the first half of them and the second."""
        half = (len(self.layers) + 1) // 2
        yield from self.layers[:half]
        if halfway is not None:
            halfway()
        yield from self.layers[half:]

    def logits(self, result: BlockResult) -> Tensor:
        """Return the logits of tokens, [T, vocab] float32."""
        x = self._norm(self._head_mix(result.mixed()))
        logits = self._head(self._head.rows(x))
        return logits if self._vocab.is_whole else self._ranks.gathered(logits)

    def _deal(self, input_ids: Tensor) -> Deal:
        return self._ranks.deal(len(input_ids), self._streams.width)

    def named_weights(self) -> Named:
        """Yield (name in published files, where it goes) of every weight."""
        yield from self._embedding.named_weights()
        for i, layer in enumerate(self.layers):
            yield from layer.named_weights(f"layers.{i}.")
        yield from self._head_mix.named_weights()
        yield from self._norm.named_weights("")
        yield from self._head.named_weights("")


def streams_of(config: ModelConfig) -> Streams:
    """Return the sizes of stream mixing."""
    return Streams(
        count=config.hc_mult,
        width=config.hidden_size,
        iterations=config.hc_sinkhorn_iters,
        norm_eps=config.rms_norm_eps,
        hc_eps=config.hc_eps,
    )
