"""Tests of runtime.server.written: answers in the place of marks."""

from runtime.server.written import Answer, put_in


def answer(mark_ids: list[int], ids: list[int], open_tokens: int = 0) -> Answer:
    return Answer("mark", mark_ids, ids, open_tokens)


def test_ids_take_the_places_of_their_marks_in_order() -> None:
    answers = [answer([1, 2], [10]), answer([1, 3], [11, 12])]

    assert put_in([0, 1, 1, 2, 5, 1, 3, 6], answers) == ([0, 1, 10, 5, 11, 12, 6], 1)


def test_what_is_open_at_the_end_is_the_answers_where_it_ends_the_chat() -> None:
    assert put_in([0, 1], [answer([1], [7, 8], open_tokens=1)]) == ([0, 7, 8], 1)


def test_a_mark_that_is_not_there_gives_nothing() -> None:
    assert put_in([0, 1, 4], [answer([1, 2], [10])]) is None
    assert put_in([0], [answer([], [10])]) is None
