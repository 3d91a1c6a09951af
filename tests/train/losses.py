"""What a step is judged by: the loss over tokens, and the figures that tell how it went."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

ANSWER = 1.0
PAD_ID = 2


@dataclass(frozen=True, slots=True)
class Targets:
    """What is to be written, and how much it matters.

    tokens  [B, T - 1] int64: the token after each position but the last
    shares  [B, T - 1] float32: weight of each in the loss
    answer  [B, T - 1] bool: tokens of weight 1
    text    [B, T - 1] bool: all other tokens that are no padding
    """

    tokens: Tensor
    shares: Tensor
    answer: Tensor
    text: Tensor

    def rows(self, part: slice) -> "Targets":
        """Return some of the rows."""
        return Targets(self.tokens[part], self.shares[part], self.answer[part], self.text[part])


def targets_of(tokens: Tensor, weights: Tensor, *, text_weight: float) -> Targets:
    """Return the targets of rows.

    tokens       [B, T] int64
    weights      [B, T] float32 in 0..1: how much it matters to write the token at that place
    text_weight  weight, instead of theirs, of tokens of less than 1 that are no padding
    """
    wanted, shares = tokens[:, 1:], weights[:, 1:]
    answer = shares >= ANSWER
    # A padding token with a weight is one that is to be written.
    text = ~answer & ((wanted != PAD_ID) | (shares > 0))
    return Targets(wanted, shares.masked_fill(text, text_weight), answer, text)


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums over tokens, float64 scalars on the device of the logits.

    answers      tokens of weight 1
    answer_loss  their cross entropy
    right        how many of them the argmax had
    texts        other tokens that are no padding
    text_loss    their cross entropy
    """

    answers: Tensor
    answer_loss: Tensor
    right: Tensor
    texts: Tensor
    text_loss: Tensor

    @property
    def sums(self) -> list[Tensor]:
        """All of them."""
        return [self.answers, self.answer_loss, self.right, self.texts, self.text_loss]

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.answers + other.answers,
            self.answer_loss + other.answer_loss,
            self.right + other.right,
            self.texts + other.texts,
            self.text_loss + other.text_loss,
        )


def token_loss(logits: Tensor, targets: Targets) -> tuple[Tensor, Tally]:
    """Return the cross entropy, weighted and added up, and the tally.

    logits  [B, T, vocab] float32; the last of each row judges nothing
    """
    guesses, wanted = logits[:, :-1].flatten(0, 1), targets.tokens.flatten()
    loss = F.cross_entropy(guesses, wanted, reduction="none")
    with torch.no_grad():
        answer, text = targets.answer.flatten(), targets.text.flatten()
        right = (guesses.argmax(-1) == wanted) & answer
        tally = Tally(
            answers=answer.sum(dtype=torch.float64),
            answer_loss=(loss * answer).sum(dtype=torch.float64),
            right=right.sum(dtype=torch.float64),
            texts=text.sum(dtype=torch.float64),
            text_loss=(loss * text).sum(dtype=torch.float64),
        )
    return (loss * targets.shares.flatten()).sum(), tally
