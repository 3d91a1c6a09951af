"""Tokens of a token runner where masks bar some: the next one above that is allowed is said."""

import numpy as np


def allowed_token(token: int, vocab: int, mask: np.ndarray | None) -> int:
    """Return a token if it is allowed, else the next one above that is; None: all are."""
    if mask is None:
        return token
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return next(t for i in range(vocab) if bits[t := (token + i) % vocab])
