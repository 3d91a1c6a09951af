"""Dialogues to evaluate with are of the wanted length, checked at their end, and new."""

import pytest
from tokenizers import Tokenizer

from tests.testing.stand_in.tokenizer import train_tokenizer
from tests.train.dialogue import Reply
from tests.train.held_out import PLACED, TASKS, held_out
from tests.train.mixture import training
from tests.train.render import Renderer


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    tokenizer: Tokenizer = train_tokenizer()
    return Renderer(tokenizer)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("tokens", [60, 1500])
def test_the_last_exchanges_are_checked_and_right(task: str, tokens: int) -> None:
    for dialogue in held_out(task, seed=1, n=6, tokens=tokens, questions=2):
        checked = dialogue.checked()

        assert 2 <= len(checked) <= 4
        assert checked[-1] >= len(dialogue.turns) - 4
        for number in checked:
            turn = dialogue.turns[number]
            assert turn.check is not None
            assert turn.check.passes(Reply(turn.content, turn.tool_calls))


@pytest.mark.parametrize("task", PLACED)
def test_what_is_asked_lies_as_far_away_as_wanted(task: str, renderer: Renderer) -> None:
    """In tokens of any tokenizer: twice as far is about twice as many."""
    distances: list[int] = []
    for tokens in (1000, 4000):
        for dialogue in held_out(task, seed=2, n=3, tokens=tokens):
            distance = renderer.distance(dialogue, dialogue.checked()[0])
            assert distance is not None
            distances.append(distance)

    assert 2.5 < sum(distances[3:]) / sum(distances[:3]) < 6


def test_the_distance_is_counted_from_the_end_of_what_was_said(renderer: Renderer) -> None:
    [dialogue] = held_out("needle", seed=3, n=1, tokens=600)
    [number] = dialogue.checked()
    check = dialogue.turns[number].check
    assert check is not None
    [row] = renderer.rows([dialogue], 60_000)
    assert row is not None
    text = renderer.decoded(row.ids)
    answer = dialogue.turns[number].content

    after = text[text.rindex(check.source) + len(check.source) : text.rindex(answer)]
    counted = len(train_tokenizer().encode(after).ids)
    distance = renderer.distance(dialogue, number)
    assert distance is not None
    assert abs(distance - counted) < 12


def test_the_same_arguments_give_the_same_dialogues() -> None:
    one, two = (list(held_out("facts", seed=4, n=3, tokens=300)) for _ in range(2))

    assert one == two
    assert one[0].turns != one[1].turns


def test_training_does_not_see_them() -> None:
    seen = training(1, 300, 0)
    texts = {turn.content for _ in range(200) for turn in next(seen).turns if turn.role == "user"}

    for dialogue in held_out("facts", seed=1, n=20, tokens=300):
        longest = max((turn.content for turn in dialogue.turns), key=len)
        assert longest not in texts


def test_a_thinking_dialogue_is_asked_for_as_one() -> None:
    [dialogue] = held_out("sums", seed=5, n=1, tokens=60, thinking=True, effort="low")

    assert dialogue.request(1)["reasoning_effort"] == "low"


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(KeyError):
        list(held_out("poetry", seed=0, n=1, tokens=60))
