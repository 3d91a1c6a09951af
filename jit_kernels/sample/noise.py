"""The noise of a draw: one number for each token, a function of seed, position and token id.

A row's key is a hash of seed and position. Its tokens take the outputs of the generator splitmix64
that starts at the key: token t the output t, so each is had without the others. The 64 bits of an
output become a number of the standard Gumbel distribution, g = -ln(E), where E is exponential:

    w = (bits 32..62) / 2^32 + (bits 0..30, the last one set) / 2^63     in (0, 0.5]
    E = -ln(w) where bit 63 is set, else -ln(1 - w)

So E is never 0, has the relative precision of float32 from 2^-40 up, steps of 2^-62 below, and
ends at 43.7: a token of probability 2^-50 is drawn as often as it should be. The logarithms are
made here, of products and sums in float32 that are rounded one by one, and not by a library: their
error is below 3e-7 of max(1, |g|), and their bits are the same on every device and in every
language.

Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014, for splitmix64;
Gumbel, "Statistical theory of extreme values", 1954. The polynomials were fitted at the nodes of
Chebyshev.
"""

import numpy as np
import torch

__all__ = ["gumbel", "row_keys"]

_STEP = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB

_LN_2 = 0.6931472
_ROOT_HALF_BITS = 0x3F3504F3
# ln(1 + f) / f where 1 + f is between the roots of 1/2 and 2; from the lowest power up.
_LOGARITHM = (
    *(0.99999994, -0.50000364, 0.33335114, -0.24970071),
    *(0.19898565, -0.17247014, 0.1623419, -0.10134057),
)
# ln(-ln(1 - w) / w) / w where w is in (0, 0.5].
_EARLY = (
    *(0.49999997, 0.20834327, 0.12460045, 0.09319676),
    *(0.02195178, 0.22096539, -0.290545, 0.32765117),
)


def row_keys(seed: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Return the key of each (seed, position), all [n] int64 on the CPU.

    Two rounds of splitmix64, one over the seed and one over the position, in wrapping arithmetic.
    In numpy, whose operations on few numbers take a fifth of the time.
    """
    step = np.uint64(_STEP)
    seeds, positions = (part.numpy().view(np.uint64) for part in (seed, position))
    return torch.from_numpy(_mix(_mix(seeds + step) + positions * step).view(np.int64))


def gumbel(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the noise of tokens, [n, w] float32.

    keys  [n] int64     `row_keys`
    ids   [n or 1, w] int64, at least 0
    """
    bits = _mix_tokens((ids + 1).mul(_signed(_STEP)) + keys[:, None])
    high = (bits >> 32 & 0x7FFFFFFF).to(torch.float32).mul_(2.0**-32)
    low = (bits & 0x7FFFFFFF | 1).to(torch.float32).mul_(2.0**-63)
    w = high.add_(low)
    log_w = _logarithm(w)
    late = _logarithm(-log_w).neg_()
    early = _polynomial(_EARLY, w).mul_(w).add_(log_w).neg_()
    return torch.where(bits < 0, late, early)


def _logarithm(x: torch.Tensor) -> torch.Tensor:
    """Return ln(x) of normal positive float32 numbers."""
    bits = x.view(torch.int32)
    exponent = bits.sub(_ROOT_HALF_BITS).bitwise_right_shift_(23)
    part = (bits - (exponent << 23)).view(torch.float32).sub_(1.0)
    whole = exponent.to(torch.float32).mul_(_LN_2)
    return _polynomial(_LOGARITHM, part).mul_(part).add_(whole)


def _polynomial(coefficients: tuple[float, ...], x: torch.Tensor) -> torch.Tensor:
    """Return the sum of coefficients[i] * x^i, each product and each sum rounded."""
    total = torch.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total.mul_(x).add_(coefficient)
    return total


def _mix(bits: np.ndarray) -> np.ndarray:
    """Return the splitmix64 finaliser of [n] uint64."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(_MIX_1)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(_MIX_2)
    return bits ^ (bits >> np.uint64(31))


def _mix_tokens(bits: torch.Tensor) -> torch.Tensor:
    """Return the same of int64 numbers, in place; what their shift makes of the sign is cut."""
    bits ^= bits >> 30 & (1 << 34) - 1
    bits *= _signed(_MIX_1)
    bits ^= bits >> 27 & (1 << 37) - 1
    bits *= _signed(_MIX_2)
    bits ^= bits >> 31 & (1 << 33) - 1
    return bits


def _signed(bits: int) -> int:
    return bits - (1 << 64)
