"""The k best blocks: higher first, ties to the lower index, ascending."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.select_topk import select_slots, select_topk

pytestmark = pytest.mark.usefixtures("device")


@pytest.mark.parametrize(("tokens", "slots", "top_k"), [(1, 1, 1), (9, 63, 7), (20, 129, 129)])
def test_the_choice_equals_a_sort_by_score_then_index(tokens: int, slots: int, top_k: int) -> None:
    scores = torch.randint(-3, 4, (tokens, slots)).float()
    visible = torch.randint(slots + 1, (tokens,))

    got = select_topk(scores, visible, top_k=top_k)

    for t in range(tokens):
        seen = int(visible[t])
        ranked = sorted(range(seen), key=lambda b: (-float(scores[t, b]), b))[:top_k]
        want = sorted(ranked) + [-1] * (min(top_k, slots) - len(ranked))
        assert got[t].tolist() == want


def test_what_is_hidden_is_not_looked_at() -> None:
    scores = torch.tensor([[1.0, torch.nan, torch.inf, 5.0]])

    assert select_topk(scores, torch.tensor([1]), top_k=3).tolist() == [[0, -1, -1]]
    seen = torch.tensor([1], dtype=torch.int32)
    assert select_topk(scores, seen, top_k=3).tolist() == [[0, -1, -1]]


def test_more_than_there_are_gives_all() -> None:
    got = select_topk(torch.randn(2, 3), torch.tensor([3, 2]), top_k=8)

    assert got.tolist() == [[0, 1, 2], [0, 1, -1]]


def test_negative_scores_are_chosen_before_nothing() -> None:
    got = select_topk(torch.tensor([[-5.0, -1.0, -3.0, 0.0]]), torch.tensor([3]), top_k=2)

    assert got.tolist() == [[1, 2]]


def test_more_than_kernels_can_sort_is_refused() -> None:
    with pytest.raises(ShapeError, match="top_k is 2049, at most 2048"):
        select_topk(torch.zeros(1, 4), torch.tensor([4]), top_k=2049)


def test_slots_are_those_of_the_chosen_blocks() -> None:
    scores = torch.tensor([[1.0, 9.0, 3.0, 8.0, 2.0], [5.0, 4.0, 6.0, 7.0, 8.0]])
    table = torch.tensor([[5, 9, 2], [7, 1, 4]], dtype=torch.int32)
    out = torch.full((2, 6), 77, dtype=torch.int32)

    select_slots(scores, torch.tensor([5, 2]), table, out[:, 1:5], top_k=3, page_blocks=2)

    assert out[0].tolist() == [77, 5 * 2 + 1, 9 * 2, 9 * 2 + 1, -1, 77]
    assert out[1].tolist() == [77, 7 * 2, 7 * 2 + 1, -1, -1, 77]


def test_slots_that_do_not_fit_are_refused() -> None:
    scores, table = torch.zeros(2, 5), torch.zeros((2, 3), dtype=torch.int32)
    seen, out = torch.tensor([5, 2]), torch.zeros((2, 2), dtype=torch.int32)

    with pytest.raises(ShapeError, match=r"3 slots a row do not fit out \[2, 2\]"):
        select_slots(scores, seen, table, out, top_k=3, page_blocks=2)
    with pytest.raises(ShapeError, match=r"page_table has shape \[1, 3\], expected \[2, any\]"):
        select_slots(scores, seen, table[:1], out, top_k=2, page_blocks=2)
    with pytest.raises(ShapeError, match=r"visible is torch\.float32"):
        select_slots(scores, seen.float(), table, out, top_k=2, page_blocks=2)
