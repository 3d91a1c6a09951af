"""Sampling in plain torch; runs on any device.

Probabilities are held as whole numbers: the likeliest token of a row weighs `SCALE` = 2^35, any
other `exp(...) * SCALE` rounded, which float32 holds. Sums of up to 2^18 of them stay within
2^53, so float64 adds them exactly, in whatever order: no sum depends on the row's company, on
the number of threads, or on the reduction a device prefers, and a shortcut (candidates instead
of a whole sort, tiles instead of one long sum) cannot change a single bit. A token below 2^-36
of the likeliest has weight 0.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from jit_kernels.sample import DrawParams

SCALE = 2.0**35
TILE = 256
CANDIDATES = 1024
# Logits that `sample_unread` works on at once.
UNREAD_LOGITS = 1 << 22

_STREAM_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def sample(
    logits: torch.Tensor,
    *,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
) -> torch.Tensor:
    """Draw one token a row; see `jit_kernels.sample.sample`."""
    drawn = temperature > 0
    if not bool(drawn.any()):
        return logits.argmax(-1)
    rows = drawn.nonzero()[:, 0]
    mixed = rows.numel() < drawn.numel()
    here = rows.to(logits.device)
    chosen = logits.index_select(0, here) if mixed else logits
    weights = token_weights(chosen, temperature[rows].to(logits.device))
    filtered = ((top_k < logits.shape[1]) | (top_p < 1) | (min_p > 0))[rows]
    if bool(filtered.any()):
        some = filtered.nonzero()[:, 0]
        there = some.to(logits.device)
        kept = _filter(
            chosen.index_select(0, there),
            weights.index_select(0, there),
            top_k=top_k[rows][some].to(logits.device),
            top_p=top_p[rows][some].to(logits.device),
            min_p=min_p[rows][some].to(logits.device),
        )
        weights.index_copy_(0, there, kept)
    tokens = _draw(weights, uniform(seed[rows], position[rows]).to(logits.device))
    if not mixed:
        return tokens
    return logits.argmax(-1).index_copy_(0, here, tokens)


def sample_unread(
    logits: torch.Tensor, params: "DrawParams", chance: torch.Tensor | None
) -> torch.Tensor:
    """Draw one token a row without the host; see `jit_kernels.sample.sample_unread`."""
    best = logits.argmax(-1)
    if chance is None or not params.draws:
        return best
    rows, vocab = logits.shape
    step = max(1, UNREAD_LOGITS // vocab)
    drawn = [
        _draw_part(logits[first : first + step], params, slice(first, first + step), chance)
        for first in range(0, rows, step)
    ]
    return torch.where(params.temperature > 0, torch.cat(drawn), best)


def _draw_part(
    logits: torch.Tensor, params: "DrawParams", part: slice, chance: torch.Tensor
) -> torch.Tensor:
    """Return the drawn tokens of some rows; those at temperature 0 get anything."""
    temperature = params.temperature[part]
    weights = token_weights(logits, temperature.where(temperature > 0, 1.0))
    if params.filters:
        mass = params.top_p[part].double() * weights.sum(-1, dtype=torch.float64)
        weights, _ = _filter_best(
            logits,
            weights,
            width=logits.shape[1],
            top_k=params.top_k[part],
            mass=mass,
            least=params.min_p[part].double() * SCALE,
        )
    return _draw(weights, chance[part])


def uniform(seed: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Return one float64 in [0, 1) for each (seed, position), both [n] int64 on the CPU.

    The value is the top 53 bits of a 64-bit hash: two rounds of the splitmix64 finaliser, one
    over the seed and one over the counter, in wrapping arithmetic. In numpy, whose operations on
    few numbers take a fifth of the time.
    """
    seeds, positions = (part.numpy().view(np.uint64) for part in (seed, position))
    bits = _mix(_mix(seeds + _STREAM_STEP) + positions * _STREAM_STEP)
    return torch.from_numpy((bits >> np.uint64(11)) * 2.0**-53)


def token_weights(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Return [n, V] float32 whole numbers proportional to softmax(logits / temperature)."""
    scaled = logits - logits.amax(-1, keepdim=True)
    return scaled.div_(temperature[:, None]).exp_().mul_(SCALE).round_()


def _filter(
    logits: torch.Tensor,
    weights: torch.Tensor,
    *,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:
    """Return `weights` with every token zeroed that a filter drops.

    Every filter keeps a prefix of the same order (larger logit first, ties to the lower id), so
    a row whose prefix ends among its best candidates needs no sort of the vocabulary.
    """
    total = weights.sum(-1, dtype=torch.float64)
    limits = {"top_k": top_k, "mass": top_p.double() * total, "least": min_p.double() * SCALE}
    width = min(logits.shape[1], CANDIDATES)
    kept, covered = _filter_best(logits, weights, width=width, **limits)
    if not bool(covered.all()):
        rest = (~covered).nonzero()[:, 0]
        whole, _ = _filter_best(
            logits.index_select(0, rest),
            weights.index_select(0, rest),
            width=logits.shape[1],
            **{name: limit.index_select(0, rest) for name, limit in limits.items()},
        )
        kept.index_copy_(0, rest, whole)
    return kept


def _filter_best(
    logits: torch.Tensor,
    weights: torch.Tensor,
    *,
    width: int,
    top_k: torch.Tensor,
    mass: torch.Tensor,
    least: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Filter by the `width` best tokens of each row alone.

    Returns the weights, and [n] bool: whether the row's kept tokens end among those candidates.
    """
    vocab = logits.shape[1]
    if width < vocab:
        # topk leaves the order of equal logits open: candidates are laid out by id, then sorted.
        ids = logits.topk(width, -1, sorted=False).indices.sort(-1).values
        values, order = logits.gather(1, ids).sort(dim=-1, descending=True, stable=True)
        ids = ids.gather(1, order)
    else:
        values, ids = logits.sort(dim=-1, descending=True, stable=True)
    weight = weights.gather(1, ids)
    before = weight.cumsum(-1, dtype=torch.float64) - weight
    rank = torch.arange(width, device=logits.device)
    keep = (rank < top_k[:, None]) & (before <= mass[:, None]) & (weight >= least[:, None])
    keep[:, 0] = True
    kept = torch.zeros_like(weights).scatter_(1, ids, weight * keep)
    if width == vocab:
        return kept, torch.ones_like(keep[:, 0])
    # Equal logits beyond the last candidate are not seen, so the last kept one must lie above it.
    last = values.gather(1, keep.sum(-1, keepdim=True) - 1)
    return kept, last[:, 0] > values[:, -1]


def _draw(weights: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
    """Return the first token [n] at which the running sum, in id order, passes chance * total."""
    n, vocab = weights.shape
    tiles = F.pad(weights, (0, -vocab % TILE)).view(n, -1, TILE)
    tile_sum = tiles.sum(-1, dtype=torch.float64)
    reached = tile_sum.cumsum(-1)
    goal = (chance * reached[:, -1]).floor_()[:, None]
    tile = (reached <= goal).sum(-1, keepdim=True).clamp_max_(tile_sum.shape[1] - 1)
    inside = tiles.gather(1, tile[:, :, None].expand(n, 1, TILE))[:, 0].double().cumsum(-1)
    inside += reached.gather(1, tile) - tile_sum.gather(1, tile)
    token = tile[:, 0] * TILE + (inside <= goal).sum(-1)
    return token.clamp_max_(vocab - 1)


def _mix(bits: np.ndarray) -> np.ndarray:
    """Return the splitmix64 finaliser of [n] uint64.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
    return bits ^ (bits >> np.uint64(31))
