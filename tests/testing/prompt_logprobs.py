"""Log-probabilities of a prompt, packed as a scheduler sends them."""

import math

import numpy as np

from runtime.packed_logprobs import PackedLogprobs, PromptLogprobs, TokenLogprobs


def packed_prompt(told: TokenLogprobs) -> PromptLogprobs:
    """Return what unpacks to `told`, whose first position has no value."""
    assert told.values[0] is None
    top, picked = told.top[1:], told.picked[1:]
    count = len(top[0]) if top else 0
    asked = tuple(token_id for _, token_id in (picked or [[]])[0])
    columns = 1 + count + len(asked)
    rows: list[list[float]] = []
    for k, value in enumerate(told.values[1:]):
        pairs = [*(top[k] if top else []), *(picked[k] if picked else [])]
        row = [math.nan] * columns if value is None else [value, *(v for v, _ in pairs)]
        rows.append(row)
    span = PackedLogprobs(
        count,
        np.asarray(told.ids[1:], "<i4").tobytes(),
        np.asarray(rows, "<f4").tobytes(),
        np.asarray([[i for _, i in row] for row in top], "<i4").tobytes(),
    )
    if not rows:
        return PromptLogprobs(told.ids[0], len(told.top), (0,) * len(told.picked))
    return PromptLogprobs(told.ids[0], count, asked, [span])
