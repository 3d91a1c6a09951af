"""The DeepSeek V4 network over fused ops; the counterpart of `layers.models.deepseek_v4.reference_network` on a GPU.

Weights stay as files hold them, streams and activations are bfloat16, sums float32. Prefill and
decode are two kinds of steps over one set of layers.

What is summed in which order depends on how many tokens a step has, unless the network is
deterministic: then a token has the same bits alone or in company, in any chunking, decoded or
prefilled.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from jit_kernels.vendor_calls import VendorCalls, vendor_calls
from layers.blocks.embedding import VocabTable
from layers.blocks.hyper_connection import BlockResult, HyperConnection, HyperHead
from layers.blocks.norm import RmsNorm
from layers.blocks.rope import RopeFrequencies
from layers.blocks.side_stream import SideStream
from layers.experts.expert_form import ExpertForm
from layers.experts.quantised import FusedExperts, expert_workspace
from layers.linear.quantised import Bf16Linear, Product
from layers.models.deepseek_v4.attention import FusedAttention
from layers.models.deepseek_v4.config import ConfigFault, ModelConfig
from layers.parallel.shares import Shards
from layers.steps.chunks.rows import token_rows
from layers.steps.chunks.step import PrefillStep
from layers.steps.contract import FusedStep, TokenInputs
from layers.steps.decode_step import DecodeRows, DecodeStep, score_slices
from layers.steps.forward_batch import FedTokens, ForwardBatch, Forwarded
from layers.steps.pieces import Capture, Parts, PrefillPieces, announced
from layers.weights.weight_target import WeightTarget
from mem_cache.pools import KvPools

__all__ = ["FusedV4", "check_fused"]

_BLOCK = 128


def check_fused(config: ModelConfig) -> None:
    """Raise ConfigFault, naming the field, for a geometry that the fused ops do not take."""
    for name, wanted in (("head_dim", 512), ("qk_rope_head_dim", 64), ("index_head_dim", 128)):
        if getattr(config, name) != wanted:
            raise ConfigFault(_misfit(name, getattr(config, name), f"{wanted}"))
    if config.num_attention_heads > 128:
        raise ConfigFault(_misfit("num_attention_heads", config.num_attention_heads, "at most 128"))
    if config.index_n_heads > 64:
        raise ConfigFault(_misfit("index_n_heads", config.index_n_heads, "at most 64"))
    if config.hc_mult > 4:
        raise ConfigFault(_misfit("hc_mult", config.hc_mult, "at most 4"))
    for name in ("hidden_size", "q_lora_rank", "o_lora_rank", "moe_intermediate_size"):
        if getattr(config, name) % _BLOCK:
            raise ConfigFault(_misfit(name, getattr(config, name), f"a multiple of {_BLOCK}"))


def _misfit(name: str, value: int, wanted: str) -> str:
    return f"{name} is {value}, and the network on a GPU needs {wanted}; use --device cpu"


class FusedLayer:
    """Attention, then experts; each after one launch that mixes back, mixes in and norms."""

    def __init__(
        self,
        config: ModelConfig,
        attention: FusedAttention,
        experts: FusedExperts,
        device: torch.device,
        side: SideStream,
    ) -> None:
        """Allocate norms and mixing weights around the two blocks.

        side  where what a step derives for all layers may be under way when it is called
        """
        self._side = side
        width, eps = config.hidden_size, config.rms_norm_eps
        self._attention_mix = HyperConnection(config, name="hc_attn", device=device)
        self._attention_norm = RmsNorm(width, eps=eps, name="attn_norm", device=device)
        self._attention = attention
        self._experts_mix = HyperConnection(config, name="hc_ffn", device=device)
        self._experts_norm = RmsNorm(width, eps=eps, name="ffn_norm", device=device)
        self._experts = experts

    def __call__(self, before: BlockResult, step: FusedStep) -> BlockResult:
        """Return what the experts make.

        before  what the layer before made, or embeddings
        """
        return self._routed(self._attended(before, step), step)

    @property
    def ratio(self) -> int:
        """Return by how much the layer compresses, 0 for not at all."""
        return self._attention.ratio

    def before(self, before: BlockResult, tokens: TokenInputs) -> Parts:
        """Return what `after` takes, streams and shares, and what `attend` takes.

        With `attend` and `after` it does what a call does; of these only `attend` knows the pools,
        and the others take each token by itself.
        """
        x, streams, shares = self._attention_mix.pre_norm(before, self._attention_norm)
        return (streams, shares), self._attention.project(x, tokens)

    def attend(self, projected: tuple[Tensor, ...], step: FusedStep) -> Tensor:
        """Return what tokens read, [T, H, 512] bfloat16; `step` writes the pools."""
        return self._attention.attend(projected, step)

    def after(
        self, out: Tensor, streams: Tensor, shares: Tensor, tokens: TokenInputs
    ) -> BlockResult:
        """Return what the experts make.

        out              from `attend`
        streams, shares  from `before`
        """
        y = self._attention.finish(out, tokens)
        return self._routed(BlockResult(y, streams, shares), tokens)

    def _attended(self, before: BlockResult, step: FusedStep) -> BlockResult:
        """Return what attention makes of what the layer before made."""
        x, streams, shares = self._attention_mix.pre_norm(before, self._attention_norm)
        self._side.join()
        return BlockResult(self._attention(x, step), streams, shares)

    def _routed(self, attended: BlockResult, tokens: TokenInputs) -> BlockResult:
        """Return what the experts make of what attention made."""
        x, streams, shares = self._experts_mix.pre_norm(attended, self._experts_norm)
        return BlockResult(self._experts(x, tokens.input_ids), streams, shares)

    def products(self) -> Iterator[Product]:
        """Yield what the layer multiplies by."""
        yield from self._attention.products()
        yield from self._experts.products()

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Tensor | WeightTarget]]:
        """Yield the weights under their names in files."""
        yield from self._attention_mix.named_weights(prefix)
        yield from self._attention_norm.named_weights(prefix)
        yield from self._attention.named_weights(f"{prefix}attn.")
        yield from self._experts_mix.named_weights(prefix)
        yield from self._experts_norm.named_weights(prefix)
        yield from self._experts.named_weights(f"{prefix}ffn.")


class FusedV4:
    """The whole network on one device."""

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device,
        *,
        experts: ExpertForm,
        deterministic: bool = False,
    ) -> None:
        """Allocate all weights.

        experts        form in which routed experts are kept; a deterministic network keeps of
                       "both" the one that it multiplies, fp4
        deterministic  a token's bits depend on its prefix alone; slower

        Raises ConfigFault for a geometry that `check_fused` refuses.
        """
        check_fused(config)
        self.config, self.device, self.deterministic = config, device, deterministic
        shards = Shards()
        vocab, width = config.vocab_size, config.hidden_size
        self._rope = RopeFrequencies(config, device)
        self._embedding = VocabTable(
            vocab, width, name="embed", dtype=torch.bfloat16, device=device
        )
        form: ExpertForm = "fp4" if deterministic and experts == "both" else experts
        expands = form == "fp4" and not deterministic
        workspace = expert_workspace(config, shards, device) if expands else None
        self._side = side = SideStream(device)
        attention = partial(
            FusedAttention,
            config,
            shards=shards,
            device=device,
            side=side,
            deterministic=deterministic,
        )
        routed = partial(
            FusedExperts,
            config,
            shards=shards,
            device=device,
            form=form,
            workspace=workspace,
            side=side,
            deterministic=deterministic,
        )
        self._layers = [
            FusedLayer(config, attention(layer), routed(layer), device, side)
            for layer in range(config.num_hidden_layers)
        ]
        self._pieces: PrefillPieces | None = None
        self._head_mix = HyperHead(config, name="hc_head", device=device)
        self._norm = RmsNorm(width, eps=config.rms_norm_eps, name="norm", device=device)
        self._head = Bf16Linear(width, {"head": vocab}, device=device, invariant=deterministic)

    @torch.inference_mode()
    def prefill(
        self,
        batch: ForwardBatch,
        pools: KvPools,
        *,
        fed: FedTokens | None = None,
        halfway: Callable[[], None] | None = None,
    ) -> Forwarded:
        """Run a step of chunks; return `batch.logit_tokens`' logits, and which rows are finite.

        batch    in host memory: the host does not wait for the device
        fed      tokens that are not the batch's but the device's
        halfway  called when half of the layers are launched

        Finished records, windows and compress states are written to `pools`.
        """
        step = PrefillStep(batch, pools, self.config, self._rope, deterministic=self.deterministic)
        if fed is not None:
            step.feed(fed)
        layers = announced(self._layers, halfway or (lambda: None))
        if self._pieces is not None and self._pieces.hold(step):
            result = self._pieces.run(step, layers)
        else:
            result = self._run(step, layers)
        finite = step.finite_rows(result.finite())
        return Forwarded(self._logits(result.of(step.logit_tokens)), finite)

    @torch.inference_mode()
    def decode(self, rows: DecodeRows, pools: KvPools) -> Tensor:
        """Run one token of each row and return their logits, [B, vocab] float32.

        Launches alone: a CUDA graph can hold it. Pools are written in place.
        """
        # Embedding and first mix ask nothing of the step but its tokens.
        with self._side.beside(rows.input_ids.shape[0]):
            step = DecodeStep(
                rows, pools, self.config, self._rope, deterministic=self.deterministic
            )
        return self._logits(self._run(step, self._layers))

    @torch.inference_mode()
    def capture_prefill(self, sizes: Sequence[int], capture: Capture) -> None:
        """Have small prefill steps replay graphs between attentions; none where `sizes` is empty.

        sizes  numbers of tokens, ascending; a step takes the least that holds its own
        """
        self._pieces = None
        if sizes:
            self._pieces = PrefillPieces(
                self._embedded,
                self._layers,
                rotated=self.config.qk_rope_head_dim,
                sizes=sizes,
                capture=capture,
                device=self.device,
            )

    @torch.inference_mode()
    def rehearse(self, rows: Iterable[int], *, head_rows: Iterable[int]) -> None:
        """Multiply by all that layers multiply by, and by the head, for each number of rows.

        Libraries compile a kernel when they first meet a number of rows of its kind.
        """
        products = self._products()
        for count in rows:
            for product in products:
                product.rehearse(count)
        for count in head_rows:
            self._head.rehearse(count)

    def vendor_calls(
        self,
        rows: Sequence[int],
        *,
        head_rows: Iterable[int],
        decoded: Iterable[int],
        columns: int,
    ) -> list[VendorCalls]:
        """Return what steps of these sizes call vendors' libraries for, all that they may.

        rows       numbers of tokens that layers take at once
        head_rows  numbers of rows that the output head takes
        decoded    numbers of rows of decode steps
        columns    blocks of 4 of the longest sequence
        """
        calls = [call for product in self._products() for call in product.calls(rows)]
        calls += self._head.calls(head_rows)
        if 4 not in self.config.compress_ratios:
            return calls
        sizes = self.config.index_n_heads, self.config.index_head_dim
        scored = {part.stop - part.start for few in decoded for part in score_slices(few, columns)}
        if self.deterministic:
            scored |= token_rows(rows)
        else:
            # One kernel, however many tokens there are.
            calls += vendor_calls("chunk_logits", sizes, [1])
        return calls + vendor_calls("paged_logits", sizes, scored)

    def named_weights(self) -> Iterator[tuple[str, Tensor | WeightTarget]]:
        """Yield (name in published files, storage) of every weight."""
        yield from self._embedding.named_weights()
        for i, layer in enumerate(self._layers):
            yield from layer.named_weights(f"layers.{i}.")
        yield from self._head_mix.named_weights()
        yield from self._norm.named_weights("")
        yield from self._head.named_weights("")

    def _products(self) -> list[Product]:
        """Return one of each kind and size that layers multiply by."""
        found = {one.sizes: one for layer in self._layers for one in layer.products()}
        return [*found.values()]

    def _run(self, step: FusedStep, layers: Iterable[FusedLayer]) -> BlockResult:
        """Return what the last layer makes."""
        result = self._embedded(step.input_ids)
        for layer in layers:
            result = layer(result, step)
        return result

    def _embedded(self, input_ids: Tensor) -> BlockResult:
        return self._embedding.embed(input_ids, streams=self.config.hc_mult)

    def _logits(self, result: BlockResult) -> Tensor:
        return self._head(self._norm(self._head_mix(result.mixed())))
