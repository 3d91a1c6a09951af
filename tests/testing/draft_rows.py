"""Rows of several tokens in a step, some of them wrong guesses, against one token at a time."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.testing.compare import assert_same_bits
from tests.testing.direct import Chunk, Direct, Row
from tests.testing.row_bytes import assert_same_bytes, held, poison_rest

__all__ = ["EVERY_OUTCOME", "SingleTokens", "Try", "copies", "verify"]

# (tokens of a row, how many of its guesses are right), all that there are.
EVERY_OUTCOME = [(n, right) for n in range(1, 9) for right in range(n)]


class SingleTokens:
    """What a prompt gives, one token at a time from `start` on.

    logits  position -> [vocab]
    bytes   length -> what may still be read
    """

    def __init__(self, direct: Direct, tokens: Sequence[int], *, start: int) -> None:
        self.tokens = list(tokens)
        self.logits: dict[int, Tensor] = {}
        self.bytes: dict[int, dict[str, Tensor]] = {}
        row = direct.row(tokens)
        direct.prefill(row, stop=start, logits=())
        while row.done < len(tokens):
            logits, _ = direct.step([Chunk(row, row.done + 1, logits=[row.done])])
            self.logits[row.done - 1] = logits[0]
            self.bytes[row.done] = held(direct, row)


@dataclass
class Try:
    """A row that computes `count` tokens; of its count - 1 guesses the first `right` are right."""

    row: Row
    count: int
    right: int

    @property
    def end(self) -> int:
        """Length of the row after the step."""
        return self.row.done + self.right + 1

    def chunk(self, tokens: Sequence[int], vocab: int) -> Chunk:
        """Return the chunk, its wrong guesses put into the row; all logits are wanted."""
        first, stop = self.row.done, self.row.done + self.count
        wrong = [(token + 1) % vocab for token in tokens[self.end : stop]]
        self.row.tokens = [*tokens[: self.end], *wrong]
        return Chunk(self.row, stop, logits=range(first, stop))


def copies(direct: Direct, tokens: Sequence[int], start: int, count: int) -> list[Row]:
    """Return rows of `start` computed tokens; whatever of them is not to be read is NaN."""
    source = direct.row(tokens)
    _, (point,) = direct.step([Chunk(source, start, points=[start])])
    rows = [direct.resume(tokens, point, source.pages) for _ in range(count)]
    for row in rows:
        poison_rest(direct, row)
    return rows


def verify(
    direct: Direct, tries: Sequence[Try], want: SingleTokens, others: Sequence[Chunk] = ()
) -> Tensor:
    """Run a step of rows of `want`'s prompt, and other chunks; return the logits of the others.

    Logits up to the first wrong guess and all that may be read are compared, to the bit; then the
    rejected tokens are forgotten, and what may not be read becomes NaN. Raises AssertionError.
    """
    chunks = [one.chunk(want.tokens, direct.model.config.vocab_size) for one in tries]
    ends = [one.end for one in tries]
    logits, _ = direct.step([*chunks, *others])
    counts = [len(chunk.logits) for chunk in chunks]
    *mine, rest = logits.split([*counts, len(logits) - sum(counts)])
    for one, end, got in zip(tries, ends, mine, strict=True):
        row, right = one.row, range(end - one.right - 1, end)
        what = f"{one.right} of {one.count - 1} guesses at {right.start}"
        assert_same_bits(got[: len(right)], torch.stack([want.logits[p] for p in right]), what=what)
        row.done, row.tokens = end, want.tokens
        assert_same_bytes(held(direct, row), want.bytes[end], what=what)
        poison_rest(direct, row)
    return rest
