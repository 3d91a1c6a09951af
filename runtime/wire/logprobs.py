"""Packed log-probabilities -> what clients are told."""

import math
from collections.abc import Sequence

from runtime.messages import TokenLogprobs
from runtime.wire.arrays import FLOAT32, INT32, unpacked
from runtime.wire.step import PackedLogprobs

__all__ = ["unpack_logprobs"]


def unpack_logprobs(packed: PackedLogprobs, asked: Sequence[int]) -> TokenLogprobs:
    """Return log-probabilities by position.

    asked  token ids that were asked for besides, in the order of the request

    A position whose logits are not finite has None for its value and empty lists: neither NaN nor
    infinity could be sent as JSON.
    """
    ids = unpacked(packed.ids, INT32)
    columns = 1 + packed.top + len(asked)
    values = unpacked(packed.values, FLOAT32, len(ids), columns).tolist()
    best = unpacked(packed.best, INT32, len(ids), packed.top).tolist()
    told = TokenLogprobs(ids=ids.tolist())
    for row, likeliest in zip(values, best, strict=True):
        finite = not math.isnan(row[0])
        told.values.append(row[0] if finite else None)
        if packed.top:
            told.top.append(list(zip(row[1:], likeliest, strict=False)) if finite else [])
        if asked:
            pairs = zip(row[1 + packed.top :], asked, strict=True)
            told.picked.append(list(pairs) if finite else [])
    return told
