"""Question papers hold the questions asked at a dialogue's end, and are marked answer by answer."""

import numpy as np
import pytest
import torch
from torch import Tensor

from runtime.default_model.folder import CHECKPOINT
from tests.testing.stand_in.tokenizer import EOS_ID
from tests.train.exam import EXAMINED, Exams, Paper, right_answers

LENGTH, ROWS = 1024, 3
TOKENIZER = CHECKPOINT / "tokenizer.json"


@pytest.fixture(scope="module")
def exams() -> Exams:
    return Exams(TOKENIZER, rows=ROWS)


def _knowing(paper: Paper) -> Tensor:
    """Return the logits of who knows every token."""
    after = np.concatenate((paper.ids[:, 1:], np.zeros((len(paper.ids), 1), np.int64)), 1)
    return torch.nn.functional.one_hot(torch.from_numpy(after), 2048).float()


def test_a_paper_of_every_task_has_its_questions_in_every_row(exams: Exams) -> None:
    papers = exams.papers(LENGTH)

    assert [paper.task for paper in papers] == list(EXAMINED)
    for paper in papers:
        assert paper.ids.shape == paper.marks.shape
        assert 1 <= len(paper.ids) <= ROWS
        assert paper.ids.shape[1] == LENGTH
        for ids, marks in zip(paper.ids, paper.marks, strict=True):
            answers = [ids[marks == number] for number in np.unique(marks) if number]
            assert len(answers) == EXAMINED[paper.task]
            assert all(answer[-1] == EOS_ID for answer in answers), "each ends by itself"
            assert np.flatnonzero(marks).min() > 0.3 * LENGTH


def test_an_answer_is_right_if_all_its_tokens_are(exams: Exams) -> None:
    paper = exams.papers(LENGTH)[0]
    logits, every = _knowing(paper), slice(0, len(paper.ids))
    asked = EXAMINED[paper.task] * len(paper.ids)

    assert right_answers(logits, paper, every) == (asked, asked)
    first = int(np.flatnonzero(paper.marks[0])[0])
    logits[0, first - 1] = 0.0
    logits[0, first - 1, 0] = 1.0
    assert right_answers(logits, paper, every) == (asked - 1, asked)
    assert right_answers(logits[1:], paper, slice(1, None)) == (
        asked - EXAMINED[paper.task],
        asked - EXAMINED[paper.task],
    )
    assert right_answers(torch.zeros_like(logits), paper, every)[0] == 0


def test_papers_are_the_same_for_the_same_seed(exams: Exams) -> None:
    again = Exams(TOKENIZER, rows=ROWS).papers(LENGTH)

    for one, other in zip(exams.papers(LENGTH), again, strict=True):
        assert (one.ids == other.ids).all()
        assert (one.marks == other.marks).all()
