"""Tests of runtime.lang.prompt."""

import pytest

from runtime.errors import BadRequest
from runtime.lang.prompt import Between, Place, Prompt, Transcript, Turn, Written


def test_adjacent_texts_are_one_and_what_a_model_wrote_keeps_its_ids() -> None:
    said = Transcript()
    said.add("a")
    said.add("b")
    said.add("c", (7,))
    said.add("")
    said.add("d")

    assert said.prompt() == Prompt(pieces=("ab", Written("c", (7,)), "d"))
    assert said.prompt().text == "abcd"


def test_a_chat_prompt_ends_with_what_the_answer_says_already() -> None:
    said = Transcript()
    said.begin("user")
    said.add("hi")
    said.end("user")
    said.begin("assistant")
    fresh = said.prompt()
    said.add("Well,", (1, 2))

    assert fresh == Prompt(turns=(Turn("user", "hi"),))
    assert fresh.begun == ""
    written = ("", Written("Well,", (1, 2)))
    assert said.prompt().turns[-1] == Turn("assistant", "Well,", written)
    assert said.prompt().begun == "Well,"
    assert said.settled() == said.prompt()


def test_messages_are_the_closed_turns() -> None:
    said = Transcript()
    said.begin("user")
    said.add("hi")
    said.end("user")
    said.begin("assistant")

    assert said.messages() == [{"role": "user", "content": "hi"}]


def test_a_copy_goes_its_own_way() -> None:
    said = Transcript()
    said.add("a")
    other = said.copy()
    other.add("b")

    assert (said.prompt().text, other.prompt().text) == ("a", "ab")


def test_text_outside_of_turns_keeps_its_place() -> None:
    said = Transcript()
    said.add("a")
    said.add("b", (1,))
    said.begin("user")
    said.add("hi")
    said.end("user")
    said.add("c")
    before = said.copy()
    said.add("d")
    said.add("e", (2,))
    said.begin("assistant")

    outside = (Between(0, "a"), Between(0, Written("b", (1,))), Between(1, "cd"))
    outside += (Between(1, Written("e", (2,))),)
    turns = (Turn("user", "hi"),)
    assert said.prompt() == Prompt(turns=turns, between=outside)
    assert said.settled() == said.prompt()
    assert before.prompt().between[-1] == Between(1, "c")
    assert "".join(part.text for part in outside) == "abcde"


def test_the_model_may_write_after_a_chat_or_in_a_users_turn() -> None:
    said = Transcript()
    said.begin("user")
    said.add("hi")
    inside = said.prompt()
    said.end("user")

    turns = (Turn("user", "hi"),)
    assert inside == Prompt(turns=turns, open=False, unfinished=True)
    assert said.prompt() == Prompt(turns=turns, open=False)


def test_turns_open_and_close_in_order() -> None:
    said = Transcript()
    with pytest.raises(BadRequest, match="no turn"):
        said.end("user")
    said.begin("user")
    with pytest.raises(BadRequest, match="inside"):
        said.begin("assistant")
    with pytest.raises(BadRequest, match="user turn"):
        said.end("assistant")


def test_an_empty_prompt_is_false() -> None:
    assert not Transcript().prompt()
    assert Prompt(pieces=("a",))


def test_what_a_model_writes_inside_of_a_turn_stays_in_ids() -> None:
    said = Transcript()
    for role in ("user", "assistant"):
        said.begin(role)
        said.add("a")
        said.add("b", (2,))
        said.add("c")
        said.add("d")
        said.end(role)

    assert said.copy().turns == [
        Turn(role, "abcd", ("a", Written("b", (2,)), "cd")) for role in ("user", "assistant")
    ]


INTRODUCTION = "Sort the mails of the shop into weather, market or music, and say why: "


def test_prompts_part_where_arguments_first_stand() -> None:
    plain = Prompt(pieces=(INTRODUCTION + "a fox, and a bear",))
    chat = Prompt(turns=(Turn("system", INTRODUCTION), Turn("user", "Q: why?")))
    at = len(INTRODUCTION)

    assert plain.parting(("a fox",)).shared == (Place(None, at),)
    assert plain.parting(("a bear", "a fox", "x")).shared == (
        Place(None, at),
        Place(None, at + len("a fox, and ")),
    )
    assert chat.parting(("why?",)).shared == (Place(1, len("Q: ")),)


@pytest.mark.parametrize(
    "prompt",
    [
        Prompt(pieces=("short a fox",)),
        Prompt(pieces=("a fox" + INTRODUCTION,)),
        Prompt(pieces=(INTRODUCTION, Written("a fox", (1,)))),
        Prompt(turns=(Turn("user", INTRODUCTION + "a fox"),), between=(Between(0, "b"),)),
    ],
)
def test_prompts_that_share_nothing_are_sent_as_they_are(prompt: Prompt) -> None:
    assert prompt.parting(("a fox",)) == prompt


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        (INTRODUCTION, INTRODUCTION.rstrip()),
        (INTRODUCTION + "\n\n", INTRODUCTION.rstrip()),
        (INTRODUCTION + "a fi", INTRODUCTION + "a"),
        (INTRODUCTION[:63], None),
    ],
)
def test_the_last_word_of_text_that_goes_on_may_change(text: str, stays: str | None) -> None:
    said = Transcript()
    said.begin("user")
    said.add(text)

    shared = said.settled().with_stable_end().shared
    plain = Prompt(pieces=(text,)).with_stable_end().shared

    assert shared == ((Place(0, len(stays)),) if stays else ())
    assert plain == ((Place(None, len(stays)),) if stays else ())


def test_a_turn_without_text_is_not_settled() -> None:
    said = Transcript()
    said.begin("user")

    assert not said.settled()
    assert Prompt(turns=(Turn("user", INTRODUCTION),), open=False).with_stable_end().shared == ()
