"""Log-probabilities as arrays, from the step that computes them to the reply.

A prompt of thousands of tokens has millions: as objects they would take a hundred bytes each, and
hold up every stream for as long as it takes to make them. So those of prompts are unpacked a few
positions at a time, when they are written to the client.
"""

import math
from collections.abc import Sequence
from itertools import accumulate

import msgspec
import numpy as np

__all__ = ["PackedLogprobs", "PromptLogprobs", "TokenLogprobs", "unpack_logprobs"]

_FLOAT32 = np.dtype("<f4")
_INT32 = np.dtype("<i4")


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of consecutive positions.

    values  one per position; None where there is none (the first reported prompt token)
    ids     token id per position
    top     per position, (log-probability, token id) best first; empty unless asked
    picked  per position, (log-probability, token id) of the asked token ids
    """

    values: list[float | None] = []
    ids: list[int] = []
    top: list[list[tuple[float, int]]] = []
    picked: list[list[tuple[float, int]]] = []

    def __len__(self) -> int:
        return len(self.values)

    @property
    def entries(self) -> int:
        """Log-probabilities in all."""
        return len(self.values) + sum(map(len, self.top)) + sum(map(len, self.picked))

    def part(self, start: int, stop: int | None) -> "TokenLogprobs":
        """Return those of positions [start, stop); None: up to the last."""
        cut = slice(start, stop)
        return TokenLogprobs(self.values[cut], self.ids[cut], self.top[cut], self.picked[cut])

    def extend(self, more: "TokenLogprobs | None") -> None:
        """Append the positions of `more`, in place."""
        if more is not None:
            self.values.extend(more.values)
            self.ids.extend(more.ids)
            self.top.extend(more.top)
            self.picked.extend(more.picked)


class PackedLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities at r positions.

    top     likeliest tokens of each
    ids     [r] int32 the positions' own tokens
    values  [r, 1 + top + asked] float32 of the own token, the likeliest, the asked; NaN in a row
            whose logits are not finite
    best    [r, top] int32 the likeliest tokens, best first
    """

    top: int
    ids: bytes
    values: bytes
    best: bytes = b""

    def __len__(self) -> int:
        return len(self.ids) // _INT32.itemsize

    def part(self, start: int, stop: int) -> "PackedLogprobs":
        """Return those of positions [start, stop)."""
        each = len(self.values) // max(1, len(self))
        ids, best = _INT32.itemsize, _INT32.itemsize * self.top
        return PackedLogprobs(
            self.top,
            self.ids[start * ids : stop * ids],
            self.values[start * each : stop * each],
            self.best[start * best : stop * best],
        )


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of consecutive positions of a prompt.

    first  id of the first token, which has no value
    top    likeliest tokens that were asked for at each position
    asked  token ids that were asked for besides
    spans  of the tokens after the first, in order
    """

    first: int
    top: int = 0
    asked: tuple[int, ...] = ()
    spans: list[PackedLogprobs] = []

    def __len__(self) -> int:
        return 1 + sum(map(len, self.spans))

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(len(s.ids) + len(s.values) + len(s.best) for s in self.spans)

    @property
    def ids(self) -> list[int]:
        """One token id per position."""
        return self.part(0, None).ids

    @property
    def values(self) -> list[float | None]:
        """One per position; None where there is none."""
        return self.part(0, None).values

    def part(self, start: int, stop: int | None) -> TokenLogprobs:
        """Return those of positions [start, stop); None: up to the last."""
        stop = len(self) if stop is None else min(stop, len(self))
        told = TokenLogprobs()
        if start == 0 < stop:
            told.values.append(None)
            told.ids.append(self.first)
            told.top.extend([[]] if self.top else [])
            told.picked.extend([[]] if self.asked else [])
        for span, end in zip(self.spans, accumulate(map(len, self.spans), initial=1), strict=False):
            begin = max(start - end, 0)
            if begin < len(span) and end < stop:
                told.extend(unpack_logprobs(span.part(begin, stop - end), self.asked))
        return told


def unpack_logprobs(packed: PackedLogprobs, asked: Sequence[int]) -> TokenLogprobs:
    """Return log-probabilities by position.

    asked  token ids that were asked for besides, in the order of the request

    A position whose logits are not finite has None for its value and empty lists: neither NaN nor
    infinity could be sent as JSON.
    """
    ids = np.frombuffer(packed.ids, _INT32)
    columns = 1 + packed.top + len(asked)
    values = np.frombuffer(packed.values, _FLOAT32).reshape(len(ids), columns).tolist()
    best = np.frombuffer(packed.best, _INT32).reshape(len(ids), packed.top).tolist()
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
