"""Attention over a sliding window and compressed blocks, in one softmax with a sink.

Dense and masked, as matrix products. Queries go in chunks of one window: a chunk meets the keys
of the chunk before and its own. Scores are computed again on the way back; what is kept is the
result and one number a head. Keys are values, so each has two gradients that are added.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.train.regions import Regions
from tests.train.segments import Segment, product, segments


@dataclass(frozen=True, slots=True)
class CoreShape:
    """Constants of one layer's attention.

    ratio  tokens a block; 0: there are no blocks
    mass   also return how much of the attention went to each block
    """

    window: int
    ratio: int
    scale: float
    mass: bool


def attend(
    q: Tensor,
    kv: Tensor,
    blocks: Tensor | None,
    sink: Tensor,
    *,
    chosen: Tensor | None,
    shape: CoreShape,
    run: Regions,
) -> tuple[Tensor, Tensor | None]:
    """Return (result [B, T, H, D], attention on blocks averaged over heads [B, T, W] or None).

    q       [B, T, H, D]
    kv      [B, T, D], keys and values of the window
    blocks  [B, W, D], or None
    sink    [H] float32
    chosen  [B, T, W] bool, the blocks each query attends; None: all that it sees
    """
    return _Core.apply(q, kv, blocks, sink, chosen, shape, run)  # type: ignore[return-value]


class _Core(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, Tensor | None]:
        """Attend; see `attend`."""
        q, kv, blocks, sink, chosen, shape, run = args
        work = _Work(q, kv, blocks, chosen, shape)
        out, mass = torch.empty_like(q), None
        lse = q.new_empty(q.shape[:3], dtype=torch.float32)
        if shape.mass:
            mass = q.new_zeros((*q.shape[:2], blocks.shape[1]))
        for part in segments(q.shape[1], shape.ratio):
            near, far = work.scores(part)
            hidden_near, hidden_far = work.hidden(part)
            soften = run(_soften, any_length=True)
            p_near, p_far, lse[:, part.first : part.last] = soften(
                near, far, sink, hidden_near, hidden_far, shape.scale, q.dtype
            )
            out[:, part.first : part.last] = work.values(part, p_near, p_far)
            if mass is not None and p_far is not None:
                mass[:, part.first : part.last, : part.seen] = p_far.mean(2)
        ctx.save_for_backward(q, kv, blocks, sink, chosen, out, lse)
        ctx.shape, ctx.run = shape, run
        if mass is not None:
            ctx.mark_non_differentiable(mass)
        return out, mass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, kv, blocks and sink."""
        q, kv, blocks, sink, chosen, out, lse = ctx.saved_tensors
        work, shape = _Work(q, kv, blocks, chosen, ctx.shape), ctx.shape
        d_out = grads[0].contiguous()
        delta = (d_out.to(torch.float32) * out.to(torch.float32)).sum(-1)
        d_sink = -(torch.exp(sink - lse) * delta).sum((0, 1))
        d_q = torch.empty_like(q)
        d_padded = q.new_zeros(work.padded.shape, dtype=torch.float32)
        d_blocks = None if blocks is None else blocks.new_zeros(blocks.shape, dtype=torch.float32)
        for part in segments(q.shape[1], shape.ratio):
            here = slice(part.first, part.last)
            near, far = work.scores(part)
            p_near, s_near, p_far, s_far = ctx.run(_harden, any_length=True)(
                (near, far),
                work.scores(part, d_out),
                (lse[:, here], delta[:, here]),
                work.hidden(part),
                shape.scale,
                q.dtype,
            )
            d_q[:, here] = work.values(part, s_near, s_far)
            queries, d_results = q[:, here], d_out[:, here]
            d_near = work.chunked(part, s_near, queries) + work.chunked(part, p_near, d_results)
            d_near = d_near.unflatten(0, (q.shape[0], -1))
            first, last, window = part.first, part.last, shape.window
            d_padded[:, first:last] += d_near[:, :, :window].flatten(1, 2)
            d_padded[:, first + window : last + window] += d_near[:, :, window:].flatten(1, 2)
            if d_blocks is not None and p_far is not None:
                d_blocks[:, : part.seen] += _transposed(s_far, queries)
                d_blocks[:, : part.seen] += _transposed(p_far, d_results)
        d_kv = d_padded[:, shape.window :].to(kv.dtype)
        d_far = None if d_blocks is None or blocks is None else d_blocks.to(blocks.dtype)
        return d_q, d_kv, d_far, d_sink, None, None, None


class _Work:
    """Products of one layer's tensors, segment by segment."""

    def __init__(
        self, q: Tensor, kv: Tensor, blocks: Tensor | None, chosen: Tensor | None, shape: CoreShape
    ) -> None:
        self._q, self._blocks, self._chosen, self._shape = q, blocks, chosen, shape
        self.padded = torch.nn.functional.pad(kv, (0, 0, shape.window, 0))

    def near(self, part: Segment) -> Tensor:
        """Return the keys each chunk meets, [B * chunks, 2 W, D]."""
        window, first, last = self._shape.window, part.first, part.last
        before = self.padded[:, first:last].unflatten(1, (-1, window))
        own = self.padded[:, first + window : last + window].unflatten(1, (-1, window))
        return torch.cat((before, own), 2).flatten(0, 1)

    def scores(self, part: Segment, q: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return products of queries (or of another tensor [B, T, H, D]) with keys, float32.

        Two tensors, [B, S, H, 2 W] and [B, S, H, seen].
        """
        q = (self._q if q is None else q)[:, part.first : part.last]
        batch, length, heads, width = q.shape
        window = self._shape.window
        queries = q.reshape(-1, window * heads, width)
        near = product(queries, self.near(part).transpose(1, 2)).view(batch, length, heads, -1)
        if self._blocks is None or not part.seen:
            return near, None
        seen = self._blocks[:, : part.seen]
        far = product(q.reshape(batch, length * heads, width), seen.transpose(1, 2))
        return near, far.view(batch, length, heads, -1)

    def hidden(self, part: Segment) -> tuple[Tensor, Tensor | None]:
        """Return what a query does not see, broadcast over heads: of the window, of the blocks."""
        device, window = self._q.device, self._shape.window
        near = part.hidden_near(window, device).unsqueeze(1)
        if not part.seen:
            return near, None
        if self._chosen is None:
            return near, part.hidden_blocks(self._shape.ratio, device).unsqueeze(1)
        chosen = self._chosen[:, part.first : part.last, : part.seen]
        return near, ~chosen.unsqueeze(2)

    def values(self, part: Segment, near: Tensor, far: Tensor | None) -> Tensor:
        """Return keys weighted by [B, S, H, keys], added up: [B, S, H, D]."""
        batch, length, heads, span = near.shape
        chunks = near.reshape(-1, self._shape.window * heads, span)
        result = torch.bmm(chunks, self.near(part)).view(batch, length, heads, -1)
        if far is None or self._blocks is None:
            return result
        rows = far.reshape(batch, length * heads, -1)
        return result + torch.bmm(rows, self._blocks[:, : part.seen]).view_as(result)

    def chunked(self, part: Segment, weights: Tensor, rows: Tensor) -> Tensor:
        """Return, for the keys of each chunk, `rows` [B, S, H, D] weighted: [chunks, 2 W, D]."""
        del part
        heads, span = weights.shape[2:]
        tall = self._shape.window * heads
        transposed = weights.reshape(-1, tall, span).transpose(1, 2)
        return product(transposed, rows.reshape(-1, tall, rows.shape[3]))


def _transposed(weights: Tensor, rows: Tensor) -> Tensor:
    """Return, for each block, `rows` [B, S, H, D] weighted by [B, S, H, seen]: [B, seen, D]."""
    return product(weights.flatten(1, 2).transpose(1, 2), rows.flatten(1, 2))


def _soften(
    near: Tensor,
    far: Tensor | None,
    sink: Tensor,
    hidden_near: Tensor,
    hidden_far: Tensor | None,
    scale: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return both parts of the softmax, and the logarithm of its denominator [B, S, H]."""
    near = (near * scale).masked_fill(hidden_near, -torch.inf)
    greatest = torch.maximum(near.amax(-1), sink)
    if far is None or hidden_far is None:
        total = (near - greatest.unsqueeze(-1)).exp().sum(-1) + (sink - greatest).exp()
        lse = greatest + total.log()
        return (near - lse.unsqueeze(-1)).exp().to(dtype), None, lse
    far = (far * scale).masked_fill(hidden_far, -torch.inf)
    greatest = torch.maximum(greatest, far.amax(-1))
    total = (near - greatest.unsqueeze(-1)).exp().sum(-1) + (sink - greatest).exp()
    total = total + (far - greatest.unsqueeze(-1)).exp().sum(-1)
    lse = greatest + total.log()
    p_near = (near - lse.unsqueeze(-1)).exp().to(dtype)
    return p_near, (far - lse.unsqueeze(-1)).exp().to(dtype), lse


def _harden(
    scores: tuple[Tensor, Tensor | None],
    d_weights: tuple[Tensor, Tensor | None],
    known: tuple[Tensor, Tensor],
    hidden: tuple[Tensor, Tensor | None],
    scale: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the softmax again and the gradient of the products, for both parts.

    known  the logarithm of the denominator and (gradient . result), [B, S, H]
    """
    lse, delta = (x.unsqueeze(-1) for x in known)

    def part(score: Tensor, d_weight: Tensor, unseen: Tensor) -> tuple[Tensor, Tensor]:
        p = (score * scale - lse).exp().masked_fill(unseen, 0.0)
        return p.to(dtype), (p * (d_weight - delta) * scale).to(dtype)

    near = part(scores[0], d_weights[0], hidden[0])
    if scores[1] is None or d_weights[1] is None or hidden[1] is None:
        return *near, None, None
    return *near, *part(scores[1], d_weights[1], hidden[1])
