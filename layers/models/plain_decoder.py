"""A decoder on one device: layers of attention and a feed-forward block over a residual stream.

    h = h + attention(norm(h));  h = h + feed_forward(norm(h));  logits = head(norm(h))

The stream is float32 whatever the dtype of matrices. What a block makes is added to it by the norm
before the next block, in one op. Names of weights are the published ones.
"""

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from layers.blocks.embedding import Embedding
from layers.blocks.gated import FeedForward
from layers.blocks.norm import RmsNorm
from layers.kinds import DecoderKinds
from layers.linear.contract import Named
from layers.parallel.ranks import Ranks, Undealt

__all__ = ["Attention", "Decoder", "DecoderLayer"]

StepT_contra = TypeVar("StepT_contra", contravariant=True)


class Attention(Protocol[StepT_contra]):
    """What a family attends with."""

    def __call__(self, x: Tensor, step: StepT_contra) -> Tensor:
        """Write what tokens leave in pools, and return the result, [T, d] float32.

        x  [T, d] of the kinds' dtype, the normed stream
        """
        ...

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        ...


class DecoderLayer(Generic[StepT_contra]):
    """Attention, then a feed-forward block."""

    def __init__(
        self,
        attention: Attention[StepT_contra],
        feed_forward: FeedForward,
        width: int,
        *,
        eps: float,
        kinds: DecoderKinds,
    ) -> None:
        """Take the blocks, and allocate the norms of the stream of `width` channels."""
        self._attention, self._feed_forward = attention, feed_forward
        self._dtype = kinds.dtype
        self._norms = [
            RmsNorm(width, eps=eps, name=name, device=kinds.device)
            for name in ("input_layernorm", "post_attention_layernorm")
        ]

    def __call__(self, h: Tensor, y: Tensor | None, step: StepT_contra) -> Tensor:
        """Add to the stream, and return what is still to be added, [T, d] float32.

        h  [T, d] float32, the stream, changed in place
        y  [T, d] float32, what the layer before has still to add; None: nothing
        """
        before, between = self._norms
        y = self._attention(before.of_sum(h, y, out_dtype=self._dtype), step)
        return self._feed_forward(between.of_sum(h, y, out_dtype=self._dtype))

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        for norm in self._norms:
            yield from norm.named_weights(prefix)
        yield from self._attention.named_weights(f"{prefix}self_attn.")
        yield from self._feed_forward.named_weights(f"{prefix}mlp.")


class Decoder(Generic[StepT_contra]):
    """Embedding, layers and head."""

    def __init__(
        self,
        layers: Sequence[DecoderLayer[StepT_contra]],
        width: int,
        vocab: int,
        *,
        eps: float,
        tied: bool,
        kinds: DecoderKinds,
        ranks: Ranks,
    ) -> None:
        """Take the layers, and allocate the rest that this rank holds.

        tied  the output head is the embedding
        """
        self._layers, self._ranks, device = layers, ranks, kinds.device
        self._dtype = kinds.dtype
        share = ranks.shares.vocabulary(vocab)
        self._embedding = Embedding(
            share, width, name="model.embed_tokens", dtype=kinds.stored, device=device
        )
        self._norm = RmsNorm(width, eps=eps, name="model.norm", device=device)
        self._tied = tied
        own = self._embedding.weight if tied else None
        self._head = kinds.head(width, {"lm_head": share}, weight=own)

    def run(
        self, input_ids: Tensor, step: StepT_contra, halfway: Callable[[], None] | None = None
    ) -> Tensor:
        """Return the stream behind the last layer, [T, d] float32; `step` writes the pools.

        halfway  called when half of the layers are launched
        """
        h = self._embedding(input_ids, Undealt(self._ranks)).to(torch.float32)
        half, y = (len(self._layers) + 1) // 2, None
        for layer in self._layers[:half]:
            y = layer(h, y, step)
        if halfway is not None:
            halfway()
        for layer in self._layers[half:]:
            y = layer(h, y, step)
        return h if y is None else h.add_(y)

    def logits(self, h: Tensor) -> Tensor:
        """Return the logits of tokens, [T, vocab] float32."""
        x = self._norm.of_sum(h, None, out_dtype=self._dtype)
        return self._ranks.gathered(self._head(self._head.rows(x)))

    def named_weights(self) -> Named:
        """Yield (name in published files, where it goes) of every weight."""
        yield from self._embedding.named_weights()
        for i, layer in enumerate(self._layers):
            yield from layer.named_weights(f"model.layers.{i}.")
        yield from self._norm.named_weights("")
        if not self._tied:
            yield from self._head.named_weights("")
