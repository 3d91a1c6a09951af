"""Sampling in plain torch; runs on any device.

Filters work on probabilities as whole numbers: the likeliest token of a row weighs `SCALE` = 2^35,
any other `exp(...) * SCALE` rounded, which float32 holds. Sums of up to 2^18 of them stay within
2^53, so float64 adds them exactly, in whatever order: no sum depends on the row's company, on
the number of threads, or on the reduction a device prefers, and a shortcut (candidates instead
of a whole sort) cannot change a single bit. Only `exp` is a library's: two devices may keep
different tokens where a weight's last bit decides whether a mass passes top-p or a weight min-p.

The race among what is left has the same bits on every device.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from jit_kernels.sample.noise import gumbel, row_keys

if TYPE_CHECKING:
    from jit_kernels.sample import DrawParams

SCALE = 2.0**35
CANDIDATES = 1024
# Logits that `sample_unread` works on at once.
UNREAD_LOGITS = 1 << 22

# `race`, or another one that finds the same.
Race = Callable[
    [torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor],
    tuple[torch.Tensor, torch.Tensor],
]


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
    filters = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    return draw(race, logits, temperature, filters, row_keys(seed, position))


def draw(
    race_of: Race,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    filters: dict[str, torch.Tensor],
    keys: torch.Tensor,
) -> torch.Tensor:
    """Draw one token a row, each kind of row together. Returns [n] int64 where the logits are.

    filters  top_k, top_p and min_p; they, `temperature` and `keys` are [n] on the CPU
    """
    drawn = temperature > 0
    if not bool(drawn.any()):
        return logits.argmax(-1)
    filtered = filters["top_k"] < logits.shape[1]
    filtered |= (filters["top_p"] < 1) | (filters["min_p"] > 0)
    tokens = torch.empty(len(drawn), dtype=torch.int64, device=logits.device)
    kinds = ((~drawn, _largest), (drawn & ~filtered, _race_all), (drawn & filtered, _race_filtered))
    for kind, find in kinds:
        rows = kind.nonzero()[:, 0]
        if not rows.numel():
            continue
        here = rows.to(logits.device)
        chosen = logits if len(rows) == len(drawn) else logits.index_select(0, here)
        own = {name: part[rows].to(logits.device) for name, part in filters.items()}
        warmth, key = (part[rows].to(logits.device) for part in (temperature, keys))
        tokens.index_copy_(0, here, find(race_of, chosen, warmth, own, key))
    return tokens


def _largest(race_of: Race, logits: torch.Tensor, *_: object) -> torch.Tensor:
    return logits.argmax(-1)


def _race_all(
    race_of: Race,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    filters: dict[str, torch.Tensor],
    keys: torch.Tensor,
) -> torch.Tensor:
    return race_of(logits, None, temperature, keys)[0]


def race(
    values: torch.Tensor,
    ids: torch.Tensor | None,
    temperature: torch.Tensor,
    keys: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the winning token of each row and its score, [n] int64 and [n] float64.

    values       [n, w] float32   logits; -inf is never ahead of anything finite, nor is NaN
    ids          [n or 1, w] int64   their token ids, in any order; None: 0 to w - 1
    temperature  [n] float32   above 0
    keys         [n] int64     `row_keys`

    The score is logit / temperature + noise, the product of the logit and 1 / temperature and the
    sum each rounded to float64. The largest one wins, of equals the one of the lowest id. So the
    winner of a set is the winner of the winners of its parts.
    """
    if ids is None:
        ids = torch.arange(values.shape[1], device=values.device)[None]
    warmth = temperature.double().reciprocal()[:, None]
    scores = values.double().mul_(warmth).add_(gumbel(keys, ids))
    scores.masked_fill_(scores.isnan(), -torch.inf)
    best = scores.amax(-1)
    first = ids.where(scores == best[:, None], torch.iinfo(torch.int64).max).amin(-1)
    return first, best


def sample_unread(
    logits: torch.Tensor, params: "DrawParams", keys: torch.Tensor | None
) -> torch.Tensor:
    """Draw one token a row without the host; see `jit_kernels.sample.sample_unread`."""
    best = logits.argmax(-1)
    if keys is None or not params.draws:
        return best
    rows, vocab = logits.shape
    step = max(1, UNREAD_LOGITS // vocab)
    drawn = [
        _draw_part(logits[first : first + step], params, slice(first, first + step), keys)
        for first in range(0, rows, step)
    ]
    return torch.where(params.temperature > 0, torch.cat(drawn), best)


def _draw_part(
    logits: torch.Tensor, params: "DrawParams", part: slice, keys: torch.Tensor
) -> torch.Tensor:
    """Return the drawn tokens of some rows; those at temperature 0 get anything."""
    temperature = params.temperature[part]
    temperature = temperature.where(temperature > 0, 1.0)
    if not params.filters:
        return race(logits, None, temperature, keys[part])[0]
    weights = token_weights(logits, temperature)
    mass = params.top_p[part].double() * weights.sum(-1, dtype=torch.float64)
    values, ids, _ = _filter_best(
        logits,
        weights,
        width=logits.shape[1],
        top_k=params.top_k[part],
        mass=mass,
        least=params.min_p[part].double() * SCALE,
    )
    return race(values, ids, temperature, keys[part])[0]


def token_weights(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Return [n, V] float32 whole numbers proportional to softmax(logits / temperature)."""
    scaled = logits - logits.amax(-1, keepdim=True)
    return scaled.div_(temperature[:, None]).exp_().mul_(SCALE).round_()


def _race_filtered(
    race_of: Race,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    filters: dict[str, torch.Tensor],
    keys: torch.Tensor,
) -> torch.Tensor:
    """Return the tokens [n] that win among those which the filters keep.

    Every filter keeps a prefix of the same order (larger logit first, ties to the lower id), so
    a row whose prefix ends among its best candidates needs no sort of the vocabulary.
    """
    weights = token_weights(logits, temperature)
    mass = filters["top_p"].double() * weights.sum(-1, dtype=torch.float64)
    limits = {"top_k": filters["top_k"], "mass": mass, "least": filters["min_p"].double() * SCALE}
    width = min(logits.shape[1], CANDIDATES)
    values, ids, covered = _filter_best(logits, weights, width=width, **limits)
    tokens, _ = race_of(values, ids, temperature, keys)
    if not bool(covered.all()):
        rest = (~covered).nonzero()[:, 0]
        values, ids, _ = _filter_best(
            logits.index_select(0, rest),
            weights.index_select(0, rest),
            width=logits.shape[1],
            **{name: limit.index_select(0, rest) for name, limit in limits.items()},
        )
        late, _ = race_of(values, ids, temperature[rest], keys[rest])
        tokens.index_copy_(0, rest, late)
    return tokens


def _filter_best(
    logits: torch.Tensor,
    weights: torch.Tensor,
    *,
    width: int,
    top_k: torch.Tensor,
    mass: torch.Tensor,
    least: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Filter by the `width` best tokens of each row alone.

    Returns their logits, -inf where a filter drops one, and their ids, both [n, width] in the
    order of the filters, and [n] bool: whether the row's kept tokens end among those candidates.
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
    covered = torch.ones_like(keep[:, 0])
    if width < vocab:
        # Equal logits beyond the last candidate are not seen: the last kept must lie above it.
        last = values.gather(1, keep.sum(-1, keepdim=True) - 1)
        covered = last[:, 0] > values[:, -1]
    return values.where(keep, -torch.inf), ids, covered
