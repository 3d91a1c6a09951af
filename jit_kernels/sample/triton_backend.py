"""Sampling in Triton: a program a row, and no sort.

Every filter keeps a prefix of one order (larger logit first, ties to the lower id). Where it ends
is found by halving: how many tokens, of what mass, lie above a logit takes one pass over the row.
Weights are the whole numbers of the reference, and sums of them are exact in float64, so the
token is the reference's whatever the order of a sum. torch takes the exponentials: another
library's may differ in the last bit.
"""

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from jit_kernels.sample import reference

if TYPE_CHECKING:
    from jit_kernels.sample import DrawParams

_SCALE = tl.constexpr(reference.SCALE)
_STAGES = tl.constexpr(4)
_INFINITY = tl.constexpr(float("inf"))
# The key of -inf.
_LOWEST = tl.constexpr(-0x7F800001)
_BLOCK = 2048
_WARPS = 16
# Rows are taken in parts of this many logits: their exponentials take 256 MiB.
_LOGITS_AT_ONCE = 1 << 26


@triton.jit
def _key(x: tl.tensor) -> tl.tensor:
    """Return int64 that orders as the float32 numbers do, -0 just below 0."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def _number(key: tl.tensor) -> tl.tensor:
    """Return the float32 number of a key."""
    bits = key.to(tl.int32)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
def _weights(exps_ptr: tl.tensor, token: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Return the weights of some tokens, whole numbers in float64; zero where masked."""
    weights = tl.load(exps_ptr + token, mask=mask, other=0.0) * _SCALE
    # From 2^23 on float32 holds whole numbers alone; adding it rounds what lies below.
    whole = (weights + 8388608.0) - 8388608.0
    return tl.where(weights < 8388608.0, whole, weights).to(tl.float64)


@triton.jit
def _total(exps_ptr: tl.tensor, VOCAB: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    """Return the mass of a row, zero if it is no number."""
    lane = tl.arange(0, BLOCK)
    mass = tl.zeros([BLOCK], tl.float64)
    for first in tl.range(0, VOCAB, BLOCK, num_stages=_STAGES):
        mass += _weights(exps_ptr, first + lane, first + lane < VOCAB)
    total = tl.sum(mass, 0)
    return tl.where(total >= 0.0, total, 0.0)


@triton.jit
def _above(
    logits_ptr: tl.tensor, exps_ptr: tl.tensor, VOCAB: tl.constexpr, low: tl.tensor,
    middle: tl.tensor, high: tl.tensor, top: tl.tensor, BLOCK: tl.constexpr,
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """Return how many tokens up to `top` lie above each of three logits, and their masses."""
    lane = tl.arange(0, BLOCK)
    low_count = tl.zeros([BLOCK], tl.int32)
    middle_count = tl.zeros([BLOCK], tl.int32)
    high_count = tl.zeros([BLOCK], tl.int32)
    low_mass = tl.zeros([BLOCK], tl.float64)
    middle_mass = tl.zeros([BLOCK], tl.float64)
    high_mass = tl.zeros([BLOCK], tl.float64)
    for first in tl.range(0, VOCAB, BLOCK, num_stages=_STAGES):
        token = first + lane
        x = tl.load(logits_ptr + token, mask=token < VOCAB, other=-_INFINITY)
        inside = (x > low) & (x <= top)
        # Few tokens are left between the bounds after some passes: most of this loads nothing.
        weights = _weights(exps_ptr, token, inside)
        low_count += inside.to(tl.int32)
        middle_count += (inside & (x > middle)).to(tl.int32)
        high_count += (inside & (x > high)).to(tl.int32)
        low_mass += weights
        middle_mass += tl.where(x > middle, weights, 0.0)
        high_mass += tl.where(x > high, weights, 0.0)
    return (
        tl.sum(low_count, 0), tl.sum(middle_count, 0), tl.sum(high_count, 0),
        tl.sum(low_mass, 0), tl.sum(middle_mass, 0), tl.sum(high_mass, 0),
    )  # fmt: skip


@triton.jit
def _pick(
    of_low: tl.tensor, of_middle: tl.tensor, of_high: tl.tensor, low: tl.tensor,
    middle: tl.tensor, high: tl.tensor, rest: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """Return the number of the lowest bound whose condition holds, `rest` if none does."""
    return tl.where(of_low, low, tl.where(of_middle, middle, tl.where(of_high, high, rest)))


@triton.jit
def _group_place(
    logits_ptr: tl.tensor, VOCAB: tl.constexpr, low: tl.tensor, high: tl.tensor, stay: tl.tensor,
    BLOCK: tl.constexpr, TILES: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return the id of token number `stay`, from 1, of those above `low` and up to `high`."""
    lane = tl.arange(0, BLOCK)
    slot = tl.arange(0, TILES)
    counts = tl.zeros([TILES], tl.int32)
    for first in tl.range(0, VOCAB, BLOCK, num_stages=_STAGES):
        token = first + lane
        x = tl.load(logits_ptr + token, mask=token < VOCAB, other=-_INFINITY)
        count = tl.sum(((x > low) & (x <= high)).to(tl.int32), 0)
        counts = tl.where(slot == first // BLOCK, count, counts)
    tile = tl.sum((tl.cumsum(counts, 0) < stay).to(tl.int32), 0)
    before = tl.sum(tl.where(slot < tile, counts, 0), 0)
    token = tile * BLOCK + lane
    x = tl.load(logits_ptr + token, mask=token < VOCAB, other=-_INFINITY)
    reached = before + tl.cumsum(((x > low) & (x <= high)).to(tl.int32), 0)
    return tile * BLOCK + tl.sum((reached < stay).to(tl.int32), 0)


@triton.jit
def _prefix(
    logits_ptr: tl.tensor, exps_ptr: tl.tensor, VOCAB: tl.constexpr, largest: tl.tensor,
    finite: tl.tensor, top_k: tl.tensor, top_p: tl.tensor, BLOCK: tl.constexpr,
    TILES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Return where top-k and top-p end, as (low, high, last).

    Tokens above `high` are kept, and of those above `low` the ones with an id up to `last`.
    """
    total = _total(exps_ptr, VOCAB, BLOCK)
    mass = top_p.to(tl.float64) * total
    mass = tl.where(mass >= 0.0, tl.where(mass > total, total, mass), 0.0)
    # The least logit whose first token is kept has its key in (low, high].
    high = _key(largest)
    low = high * 0 + _LOWEST
    high_count, low_count = finite * 0, finite
    high_mass, low_mass = total * 0.0, total
    while (high - low > 1) & (low_count - high_count > 1):
        step = (high - low + 3) >> 2
        first = low + step
        second = tl.minimum(first + step, high)
        third = tl.minimum(second + step, high)
        count_1, count_2, count_3, mass_1, mass_2, mass_3 = _above(
            logits_ptr, exps_ptr, VOCAB, _number(first), _number(second), _number(third),
            _number(high), BLOCK,
        )  # fmt: skip
        count_1, mass_1 = count_1 + high_count, mass_1 + high_mass
        count_2, mass_2 = count_2 + high_count, mass_2 + high_mass
        count_3, mass_3 = count_3 + high_count, mass_3 + high_mass
        of_1 = (count_1 < top_k) & (mass_1 <= mass)
        of_2 = (count_2 < top_k) & (mass_2 <= mass)
        of_3 = (count_3 < top_k) & (mass_3 <= mass)
        low = _pick(of_1, of_2, of_3, low, first, second, third)
        high = _pick(of_1, of_2, of_3, first, second, third, high)
        low_count = _pick(of_1, of_2, of_3, low_count, count_1, count_2, count_3)
        high_count = _pick(of_1, of_2, of_3, count_1, count_2, count_3, high_count)
        low_mass = _pick(of_1, of_2, of_3, low_mass, mass_1, mass_2, mass_3)
        high_mass = _pick(of_1, of_2, of_3, mass_1, mass_2, mass_3, high_mass)
    # Those left in between are equal, or one: how many stay is arithmetic.
    group = tl.maximum(low_count - high_count, 1)
    each = tl.maximum((low_mass - high_mass).to(tl.int64) // group, 1)
    room = mass.to(tl.int64) - high_mass.to(tl.int64)
    stay = tl.minimum(top_k - high_count, room // each + 1)
    low_logit, high_logit = _number(low), _number(high)
    last = tl.full([], VOCAB, tl.int32)
    if stay < group:
        last = _group_place(logits_ptr, VOCAB, low_logit, high_logit, stay, BLOCK, TILES)
    return low_logit, high_logit, last


@triton.jit
def _kept_weights(
    logits_ptr: tl.tensor, exps_ptr: tl.tensor, VOCAB: tl.constexpr, token: tl.tensor,
    low: tl.tensor, high: tl.tensor, last: tl.tensor, least: tl.tensor, FILTERS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return the weights of some tokens, zero where a filter drops one."""
    kept = token < VOCAB
    if FILTERS:
        x = tl.load(logits_ptr + token, mask=kept, other=-_INFINITY)
        kept = (x > high) | ((x > low) & (token <= last))
        weights = _weights(exps_ptr, token, kept)
        return tl.where(weights >= least, weights, 0.0)
    return _weights(exps_ptr, token, kept)


@triton.jit
def _draw(
    logits_ptr: tl.tensor, exps_ptr: tl.tensor, VOCAB: tl.constexpr, low: tl.tensor,
    high: tl.tensor, last: tl.tensor, least: tl.tensor, chance: tl.tensor, best: tl.tensor,
    FILTERS: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return the first token at which the running mass passes its part, `best` if none does."""
    lane = tl.arange(0, BLOCK)
    slot = tl.arange(0, TILES)
    masses = tl.zeros([TILES], tl.float64)
    for first in tl.range(0, VOCAB, BLOCK, num_stages=_STAGES):
        weights = _kept_weights(
            logits_ptr, exps_ptr, VOCAB, first + lane, low, high, last, least, FILTERS
        )
        masses = tl.where(slot == first // BLOCK, tl.sum(weights, 0), masses)
    # A whole number is above this where it is above the whole part of it.
    goal = chance * tl.sum(masses, 0)
    tile = tl.sum((tl.cumsum(masses, 0) <= goal).to(tl.int32), 0)
    before = tl.sum(tl.where(slot < tile, masses, 0.0), 0)
    weights = _kept_weights(
        logits_ptr, exps_ptr, VOCAB, tile * BLOCK + lane, low, high, last, least, FILTERS
    )
    reached = before + tl.cumsum(weights, 0)
    place = tl.sum((reached <= goal).to(tl.int32), 0)
    token = tile * BLOCK + place
    return tl.where((place < BLOCK) & (token < VOCAB), token.to(tl.int64), best)


@triton.jit(do_not_specialize_on_alignment=["temperature_ptr", "tokens_ptr", "finite_ptr"])
def _scale_kernel(
    logits_ptr: tl.tensor, stride: tl.tensor, scaled_ptr: tl.tensor,
    temperature_ptr: tl.tensor, tokens_ptr: tl.tensor, finite_ptr: tl.tensor,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * stride
    lane = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], -_INFINITY, tl.float32)
    ids = tl.zeros([BLOCK], tl.int32)
    finite = tl.zeros([BLOCK], tl.int32)
    for first in tl.range(0, VOCAB, BLOCK, num_stages=_STAGES):
        token = first + lane
        x = tl.load(logits_ptr + token, mask=token < VOCAB, other=-_INFINITY)
        ids = tl.where(x > best, token, ids)
        best = tl.where(x > best, x, best)
        finite += (x > -_INFINITY).to(tl.int32)
    largest = tl.max(best, 0)
    tl.store(tokens_ptr + row, tl.min(tl.where(best == largest, ids, VOCAB), 0).to(tl.int64))
    tl.store(finite_ptr + row, tl.sum(finite, 0))
    temperature = tl.load(temperature_ptr + row)
    if temperature > 0:
        for first in tl.range(0, VOCAB, BLOCK, num_stages=_STAGES):
            token = first + lane
            x = tl.load(logits_ptr + token, mask=token < VOCAB, other=-_INFINITY)
            scaled = tl.div_rn(x - largest, temperature)
            tl.store(scaled_ptr + row * VOCAB + token, scaled, mask=token < VOCAB)


@triton.jit(
    do_not_specialize_on_alignment=[
        *("finite_ptr", "temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr", "chance_ptr"),
        "tokens_ptr",
    ]
)
def _draw_kernel(
    logits_ptr: tl.tensor, stride: tl.tensor, exps_ptr: tl.tensor,
    finite_ptr: tl.tensor, temperature_ptr: tl.tensor, top_k_ptr: tl.tensor,
    top_p_ptr: tl.tensor, min_p_ptr: tl.tensor, chance_ptr: tl.tensor, tokens_ptr: tl.tensor,
    FILTERS: tl.constexpr, VOCAB: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * stride
    exps_ptr += row * VOCAB
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    least = tl.load(min_p_ptr + row).to(tl.float64) * _SCALE
    # Where no filter leaves more than the first token, it is there already.
    if (tl.load(temperature_ptr + row) > 0) & (top_k > 1) & (least <= _SCALE):
        best = tl.load(tokens_ptr + row)
        low = tl.full([], -_INFINITY, tl.float32)
        high = tl.full([], _INFINITY, tl.float32)
        last = tl.full([], VOCAB, tl.int32)
        if FILTERS and (top_k < VOCAB) | (top_p != top_p) | (top_p < 1.0):
            low, high, last = _prefix(
                logits_ptr, exps_ptr, VOCAB, tl.load(logits_ptr + best),
                tl.load(finite_ptr + row), top_k, top_p, BLOCK, TILES,
            )  # fmt: skip
        chance = tl.load(chance_ptr + row)
        token = _draw(
            logits_ptr, exps_ptr, VOCAB, low, high, last, least, chance, best, FILTERS, BLOCK,
            TILES,
        )  # fmt: skip
        tl.store(tokens_ptr + row, token)


def sample_unread(
    logits: torch.Tensor, params: "DrawParams", chance: torch.Tensor | None
) -> torch.Tensor:
    """Draw one token a row without the host; see `jit_kernels.sample.sample_unread`."""
    if chance is None or not params.draws:
        return logits.argmax(-1)
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    rows, vocab = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    step = max(1, _LOGITS_AT_ONCE // vocab)
    for first in range(0, rows, step):
        part = slice(first, first + step)
        _draw_part(logits[part], params, part, chance, tokens[part])
    return tokens


def _draw_part(
    logits: torch.Tensor,
    params: "DrawParams",
    part: slice,
    chance: torch.Tensor,
    tokens: torch.Tensor,
) -> None:
    """Put the tokens of some rows into `tokens`."""
    rows, vocab = logits.shape
    block = min(_BLOCK, triton.next_power_of_2(vocab))
    finite = torch.empty(rows, dtype=torch.int32, device=logits.device)
    exps = torch.empty((rows, vocab), dtype=torch.float32, device=logits.device)
    temperature = params.temperature[part]
    _scale_kernel[(rows,)](
        logits,
        logits.stride(0),
        exps,
        temperature,
        tokens,
        finite,
        VOCAB=vocab,
        BLOCK=block,
        num_warps=_WARPS,
    )
    exps.exp_()
    _draw_kernel[(rows,)](
        logits,
        logits.stride(0),
        exps,
        finite,
        temperature,
        params.top_k[part],
        params.top_p[part],
        params.min_p[part],
        chance[part],
        tokens,
        FILTERS=params.filters,
        VOCAB=vocab,
        BLOCK=block,
        TILES=triton.next_power_of_2(triton.cdiv(vocab, block)),
        num_warps=_WARPS,
    )
