"""The indexer's scores, its choice of blocks, and the loss that points it where attention looks.

Source: the DeepSeek-V3.2 report: the divergence between attention's weights, added over heads
and normalised over the blocks, and the softmax of the indexer's scores; first over all visible
blocks, then over those that the indexer itself has chosen.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.train.regions import Regions
from tests.train.segments import product, segments


@dataclass(frozen=True, slots=True)
class IndexInputs:
    """What scores are made of: `I[t, w] = sum_h weights[t, h] * relu(q[t, h] . keys[w])`.

    q        [B, T, H, C]
    keys     [B, W, C]
    weights  [B, T, H] float32
    """

    q: Tensor
    keys: Tensor
    weights: Tensor
    ratio: int


@torch.no_grad()
def choose(inputs: IndexInputs, top_k: int, run: Regions) -> Tensor:
    """Return [B, T, W] bool: the `top_k` visible blocks of the highest score, or all there are."""
    q, keys = inputs.q, inputs.keys
    chosen = torch.zeros((*q.shape[:2], keys.shape[1]), dtype=torch.bool, device=q.device)
    for part in segments(q.shape[1], inputs.ratio):
        hidden = part.hidden_blocks(inputs.ratio, q.device)
        here = slice(part.first, part.last)
        if part.seen <= top_k:
            chosen[:, here, : part.seen] = ~hidden
            continue
        products = _products(q[:, here], keys[:, : part.seen])
        scores = run(_weigh, any_length=True)(products, inputs.weights[:, here])
        scores = scores.masked_fill(hidden, -torch.inf)
        least = scores.topk(top_k, dim=-1).values[..., -1:]
        picked = run(_at_least, any_length=True)(scores, least, top_k)
        chosen[:, here, : part.seen] = picked & ~hidden
    return chosen


def divergence(inputs: IndexInputs, mass: Tensor, chosen: Tensor | None, run: Regions) -> Tensor:
    """Return the mean over queries of KL(mass || softmax(scores)), both over the same blocks.

    mass    [B, T, W], attention on blocks; it is normalised here and gets no gradient
    chosen  [B, T, W] bool, or None: all visible blocks
    Queries that see no block count nothing.
    """
    wanted = torch.is_grad_enabled()
    result: Tensor = _Divergence.apply(  # type: ignore[assignment]
        inputs.q, inputs.keys, inputs.weights, mass, chosen, inputs.ratio, run, wanted
    )
    return result


def recall(mass: Tensor, chosen: Tensor, ratio: int, top_k: int) -> Tensor:
    """Return the share of attention on blocks that falls on the chosen ones.

    Counted where there are more than `top_k` blocks to choose from; NaN where that is nowhere.
    """
    first = ratio * (top_k + 1) - 1
    late, picked = mass[:, first:].to(torch.float32), chosen[:, first:]
    return (late * picked).sum() / late.sum()


class _Divergence(torch.autograd.Function):
    """The loss with its gradients, which are made on the way forward: it stands at the end."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        """Return the loss; see `divergence`."""
        q, keys, weights, mass, chosen, ratio, run, wanted = args
        batch, length, heads, width = q.shape
        # Blocks end at t = ratio - 1 for the first time.
        count = batch * max(1, length - ratio + 1)
        total = q.new_zeros((), dtype=torch.float32)
        d_q, d_weights = torch.zeros_like(q), torch.zeros_like(weights)
        d_keys = keys.new_zeros(keys.shape, dtype=torch.float32)
        for part in segments(length, ratio):
            here, seen = slice(part.first, part.last), keys[:, : part.seen]
            hidden = part.hidden_blocks(ratio, q.device)
            if chosen is not None:
                hidden = ~chosen[:, here, : part.seen]
            products = _products(q[:, here], seen)
            target = mass[:, here, : part.seen]
            diverge = run(_diverge, any_length=True)
            kl, d_products, d_part = diverge(products, weights[:, here], target, hidden, q.dtype)
            total += kl.sum()
            if wanted:
                flat = d_products.flatten(1, 2)
                d_q[:, here] = torch.bmm(flat, seen).view(batch, -1, heads, width)
                d_keys[:, : part.seen] += product(flat.transpose(1, 2), q[:, here].flatten(1, 2))
                d_weights[:, here] = d_part
        if wanted:
            ctx.save_for_backward(d_q, d_keys.to(keys.dtype), d_weights)
        ctx.count = count
        return total / count

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        """Scale the gradients."""
        scale = grads[0] / ctx.count
        d_q, d_keys, d_weights = ((saved * scale).to(saved.dtype) for saved in ctx.saved_tensors)
        return d_q, d_keys, d_weights, None, None, None, None, None


def _products(q: Tensor, keys: Tensor) -> Tensor:
    """Return [B, S, H, W] float32 of q [B, S, H, C] and keys [B, W, C]."""
    batch, length, heads, _ = q.shape
    return product(q.flatten(1, 2), keys.transpose(1, 2)).view(batch, length, heads, -1)


def _weigh(products: Tensor, weights: Tensor) -> Tensor:
    return (products.clamp(min=0.0) * weights.unsqueeze(-1)).sum(2)


def _at_least(scores: Tensor, least: Tensor, top_k: int) -> Tensor:
    """Mark the `top_k` scores of each row; `least` is the last of them, ties go to the lower index.

    Ties are common: a block that no head likes scores exactly 0.
    """
    above, equal = scores > least, scores == least
    spare = top_k - above.sum(-1, keepdim=True, dtype=torch.int32)
    return above | (equal & (equal.cumsum(-1, dtype=torch.int32) <= spare))


def _diverge(
    products: Tensor, weights: Tensor, mass: Tensor, hidden: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the divergence [B, S] and its gradient by products and by weights.

    A query without a visible block has divergence 0.
    """
    scores = _weigh(products, weights).masked_fill(hidden, -torch.inf)
    # A row of nothing but -inf would be NaN in a softmax.
    lowest = torch.finfo(scores.dtype).min
    log_p = torch.log_softmax(scores.clamp(min=lowest), -1)
    wanted = mass.to(torch.float32).masked_fill(hidden, 0.0)
    total = wanted.sum(-1, keepdim=True)
    wanted = wanted / total.clamp(min=1e-20)
    kl = (torch.xlogy(wanted, wanted) - wanted * log_p).sum(-1)
    d_scores = (log_p.exp() * (total > 0) - wanted).masked_fill(hidden, 0.0).unsqueeze(2)
    positive = products.clamp(min=0.0)
    d_weights = (d_scores * positive).sum(-1)
    d_products = torch.where(products > 0, d_scores * weights.unsqueeze(-1), 0.0)
    return kl, d_products.to(dtype), d_weights
