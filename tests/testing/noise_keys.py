"""Keys of a draw with which a chosen token has almost all the noise that there can be."""

import torch

_ALL = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15


def splitmix64(state: int) -> int:
    """Return the output of the published generator for a state, in Python integers."""
    z = (state + _STEP) & _ALL
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _ALL
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _ALL
    return z ^ (z >> 31)


def state_of(output: int) -> int:
    """Return the state for which `splitmix64` gives `output`."""
    z = _unshifted(output, 31) * pow(0x94D049BB133111EB, -1, 1 << 64) & _ALL
    z = _unshifted(z, 27) * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & _ALL
    return (_unshifted(z, 30) - _STEP) & _ALL


def keys_with(output: int, tokens: torch.Tensor) -> torch.Tensor:
    """Return the keys [n] int64 with which `tokens` [n] get 64 given bits."""
    start = state_of(output)
    keys = [(start - token * _STEP) & _ALL for token in tokens.tolist()]
    return torch.tensor([key - (key >> 63 << 64) for key in keys], device=tokens.device)


def favouring(tokens: torch.Tensor) -> torch.Tensor:
    """Return keys [n] int64 with which `tokens` [n] int64 have noise of 43.7.

    Within 20 of the largest logit over the temperature they win, if a filter keeps them.
    """
    return keys_with(0, tokens)


def _unshifted(z: int, shift: int) -> int:
    """Return x of which z is x ^ (x >> shift)."""
    x = z
    for _ in range(64 // shift):
        x = z ^ (x >> shift)
    return x
