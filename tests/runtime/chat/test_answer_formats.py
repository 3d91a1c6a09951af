"""Tests of the rows of runtime.chat.answer_formats."""

import pytest

from runtime.chat.answer_formats import CALL_FORMATS, MARKS, MISTRAL_NAMED, CallFormat
from runtime.chat.marks import SPELLING, THINK

ROWS = [*CALL_FORMATS.values(), MISTRAL_NAMED]


def test_every_row_names_marks_that_it_uses() -> None:
    for row in ROWS:
        for text in (*row.block, *row.call, row.openers):
            assert {char for char in text if char in MARKS} <= set(row.marks)
    assert THINK not in "".join(row.marks for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_rows_head_reads_what_the_row_writes(row: CallFormat) -> None:
    written = row.block[0] + row.call[0].replace("JSON_NAME", '"f"').replace("NAME", "f")
    opener = next((k for k, char in enumerate(written) if char in row.openers), -1)
    head = written[opener + 1 :].partition("{")[0]

    found = row.head.fullmatch(head)

    assert row.shape != "tagged" or found is not None
    if found is not None and "{" not in written and row.shape == "tagged":
        assert found["name"] == "f"


def test_v4s_marks_are_among_the_marks() -> None:
    assert MARKS.items() >= SPELLING.items()
    assert len(set(MARKS.values())) == len(MARKS)
