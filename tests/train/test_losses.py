"""Which tokens count, and how much."""

import torch
import torch.nn.functional as F

from tests.train.losses import PAD_ID, targets_of, token_loss

TOKENS = torch.tensor([[5, 6, 7, PAD_ID, PAD_ID], [8, 9, PAD_ID, 4, PAD_ID]])
WEIGHTS = torch.tensor([[0.1, 0.1, 1.0, 0.0, 0.0], [0.1, 1.0, 0.1, 1.0, 0.0]])


def test_a_token_is_predicted_by_the_one_before_it_with_its_own_weight() -> None:
    targets = targets_of(TOKENS, WEIGHTS, text_weight=0.25)

    assert targets.tokens.tolist() == [[6, 7, PAD_ID, PAD_ID], [9, PAD_ID, 4, PAD_ID]]
    assert targets.shares.tolist() == [[0.25, 1.0, 0.0, 0.0], [1.0, 0.25, 1.0, 0.0]]


def test_the_loss_is_the_weighted_cross_entropy_and_the_tally_tells_its_parts() -> None:
    targets = targets_of(TOKENS, WEIGHTS, text_weight=0.25)
    logits = torch.randn(2, 5, 11)
    logits[0, 1, 7] = 20.0

    loss, tally = token_loss(logits, targets)

    each = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.tokens.flatten(), reduction="none")
    torch.testing.assert_close(loss, (each * targets.shares.flatten()).sum())
    each = each.view(2, 4)
    right = logits[:, :-1].argmax(-1) == targets.tokens
    assert (float(tally.answers), float(tally.texts)) == (3.0, 2.0)
    assert float(tally.right) == float(right[0, 1]) + float(right[1, 0]) + float(right[1, 2]) >= 1
    said = each[0, 1] + each[1, 0] + each[1, 2]
    torch.testing.assert_close(tally.answer_loss, said.double())
    torch.testing.assert_close(tally.text_loss, (each[0, 0] + each[1, 1]).double())


def test_rows_add_up_to_the_whole() -> None:
    targets, logits = targets_of(TOKENS, WEIGHTS, text_weight=0.25), torch.randn(2, 5, 11)
    whole, tally = token_loss(logits, targets)

    first, first_tally = token_loss(logits[:1], targets.rows(slice(0, 1)))
    second, second_tally = token_loss(logits[1:], targets.rows(slice(1, 2)))

    torch.testing.assert_close(first + second, whole)
    torch.testing.assert_close((first_tally + second_tally).text_loss, tally.text_loss)
