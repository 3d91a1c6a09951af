"""How many turns a conversation has had: seen at its end, remembered when its pages are gone."""

import numpy as np
import pytest

from mem_cache.spec import TreeSpec
from mem_cache.tree.core.binding import LENGTH_CLASSES
from tests.testing.dictionary_model import Rig


def _turn(rig: Rig, tokens: list[int], *, prompt: int | None = None) -> int:
    """Run a request to its end, the tokens from `prompt` on being its output; return its turns."""
    row = rig.begin(tokens)
    row.prompt_tokens = len(tokens) if prompt is None else prompt
    rig.publish(row, ended=True)
    turns = row.lock.turns
    rig.finish(row)
    return turns


@pytest.mark.parametrize("length", [7, 8, 9])
def test_who_goes_on_from_an_end_takes_the_next_turn(rig: Rig, length: int) -> None:
    tokens = list(range(40))

    assert [_turn(rig, tokens[: length * n]) for n in (1, 2, 3, 4)] == [1, 2, 3, 4]
    rig.check()


def test_who_shares_only_a_part_begins_a_conversation(rig: Rig) -> None:
    _turn(rig, list(range(10)))

    assert rig.match([*range(9), 50, 51]).turns == 1
    assert _turn(rig, [*range(8), 50, 51]) == 1


def test_who_shares_a_prompt_that_many_share_begins_a_conversation(rig: Rig) -> None:
    """A request that ended right at the end of the shared part does not make it a conversation."""
    _turn(rig, list(range(8)))
    _turn(rig, [*range(8), 50, 51])
    _turn(rig, [*range(8), 60, 61])

    assert rig.match([*range(8), 70, 71]).turns == 1


@pytest.mark.parametrize("length", [8, 10])
def test_turns_are_known_again_when_evicted_tokens_come_back(rig: Rig, length: int) -> None:
    _turn(rig, list(range(length)))
    _turn(rig, list(range(length + 4)))
    rig.evict_full(rig.full.capacity)
    tokens = list(range(length + 8))
    assert rig.match(tokens).turns == 1

    assert _turn(rig, tokens) == 3


def test_an_answer_asked_for_again_is_a_turn_of_its_conversation(rig: Rig) -> None:
    _turn(rig, [*range(6), 7, 7, 7], prompt=6)

    assert _turn(rig, [*range(6), 8, 8, 8], prompt=6) == 2


def test_an_answer_asked_for_again_is_one_also_when_its_page_was_gone_on_in(rig: Rig) -> None:
    _turn(rig, [*range(5), 7], prompt=5)
    _turn(rig, [*range(5), 7, 50, 51], prompt=8)

    assert _turn(rig, [*range(5), 8, 8], prompt=5) == 3


def test_a_question_that_another_asked_otherwise_begins_a_conversation(rig: Rig) -> None:
    _turn(rig, [*range(6), 7, 7, 7])

    assert _turn(rig, [*range(6), 8, 8, 8]) == 1


def test_answers_to_one_prompt_at_the_same_time_are_one_turn_each(rig: Rig) -> None:
    rows = [rig.begin([*range(6), 10 + n, 10, 10]) for n in range(3)]
    for row in rows:
        row.prompt_tokens = 6
        rig.publish(row, ended=True)

    assert [row.lock.turns for row in rows] == [1, 1, 1]


def test_a_prompt_that_another_ended_with_meanwhile_is_no_turn_of_that(rig: Rig) -> None:
    slow = rig.begin(list(range(8)))
    _turn(rig, list(range(8)))
    rig.evict_full(rig.full.capacity)
    rig.publish(slow, ended=True)

    assert slow.lock.turns == 1


def test_copied_tokens_have_at_least_the_turns_of_the_tree_that_they_came_from(rig: Rig) -> None:
    row = rig.begin(list(range(10)))
    for turns in (3, 1):
        rig.cache.insert(np.array(row.tokens), np.array(row.table), copied_turns=turns)
    rig.published.update(row.ids[1:])
    rig.finish(row)

    assert rig.match([*range(10), 50]).turns == 4


@pytest.mark.parametrize(
    ("pages", "by_length"), [(8, 0), (9, 1), (16, 1), (17, 2), (33, 3), (65, 4), (300, 4)]
)
def test_ends_are_counted_by_pages(pages: int, by_length: int) -> None:
    rig = Rig(TreeSpec(page_size=1, swa_page_size=1, window=1), full=300, swa=1, states=1)
    _turn(rig, list(range(pages)))

    assert rig.cache.arrays.returns["ended"].nonzero()[0].tolist() == [1 + by_length]


def test_ends_and_returns_are_counted_by_turns(rig: Rig) -> None:
    _turn(rig, list(range(8)))
    for _ in range(9):
        rig.match([99, 99])
    _turn(rig, list(range(16)))
    _turn(rig, [50] * 8)

    returns = rig.cache.arrays.returns

    one, two = 1, 1 + LENGTH_CLASSES
    assert returns["ended"][[0, one, two]].tolist() == [0, 2, 1]
    assert returns["returned"][[0, one, two]].tolist() == [0, 1, 0]
    assert returns["waited"][[0, one, two]].tolist() == [0, 9, 0]
    assert returns["ended"].sum() == 3
    assert 9 <= returns["waited"][one] <= 11


def test_an_end_is_come_back_to_once(rig: Rig) -> None:
    _turn(rig, list(range(8)))
    for _ in range(5):
        rig.match(list(range(9)))

    assert rig.cache.arrays.returns["returned"].sum() == 1


def test_very_long_conversations_share_the_last_kind(rig: Rig) -> None:
    turns = [_turn(rig, [5] * (3 + n)) for n in range(1, 19)]

    assert turns == list(range(1, 19))
    ended = rig.cache.arrays.returns["ended"][1:].reshape(-1, LENGTH_CLASSES)
    # 1 to 5 turns by themselves, 6 and 7, 8 to 11, 12 and more.
    assert ended.sum(1).tolist() == [1, 1, 1, 1, 1, 2, 4, 7]
    rig.check()
