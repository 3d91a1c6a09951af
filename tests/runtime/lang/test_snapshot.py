"""Tests of runtime.lang.snapshot: what is appended is what was said since the fork, no more."""

import pytest

from runtime.errors import BadRequest
from runtime.lang.prompt import Between, Transcript, Turn, Written
from runtime.lang.snapshot import Growth, Snapshot


def grow(start: Transcript, *said: str | tuple[str, bool]) -> Growth:
    """Return what a fork of `start` has said: text, or (role, whether its turn begins)."""
    fork = start.copy()
    for part in said:
        if isinstance(part, str):
            fork.add(part)
        else:
            (fork.begin if part[1] else fork.end)(part[0])
    return Snapshot(start.copy()).growth(fork, "shown")


@pytest.mark.parametrize("start", ["", "a"])
def test_text_is_appended_after_the_text_there_was(start: str) -> None:
    transcript = Transcript()
    transcript.add(start)
    growths = [grow(transcript, "b"), grow(transcript), grow(transcript, "c")]
    for growth in growths:
        growth.append_to(transcript)

    assert transcript.pieces == [f"{start}bc"]


def test_written_text_keeps_its_ids() -> None:
    transcript = Transcript()
    transcript.add("a", (1,))
    fork = transcript.copy()
    fork.add("b")
    fork.add("c", (3,))
    Snapshot(transcript.copy()).growth(fork, "bc").append_to(transcript)

    assert transcript.pieces == [Written("a", (1,)), "b", Written("c", (3,))]


def test_turns_are_appended_as_turns_and_the_last_may_stay_open() -> None:
    transcript = Transcript(turns=[Turn("user", "a")])
    user, assistant = "user", "assistant"
    grow(transcript, (user, True), "b", (user, False)).append_to(transcript)
    grow(transcript, (assistant, True), "c").append_to(transcript)
    grow(transcript, "d").append_to(transcript)

    assert transcript.turns == [Turn("user", "a"), Turn("user", "b")]
    assert (transcript.role, transcript.begun) == ("assistant", "cd")


def test_text_between_turns_is_appended_where_it_was_said() -> None:
    transcript = Transcript()
    transcript.add("a")
    user = "user"
    grow(transcript, "b", (user, True), "c", (user, False), "d").append_to(transcript)
    grow(transcript, "e", (user, True), (user, False), "f").append_to(transcript)

    assert transcript.turns == [Turn("user", "c"), Turn("user", "")]
    assert transcript.between == [Between(0, "ab"), Between(1, "de"), Between(2, "f")]


def test_two_forks_cannot_both_end_one_turn() -> None:
    transcript = Transcript()
    transcript.begin("user")
    transcript.add("a")
    first, second = (grow(transcript, text, ("user", False)) for text in "bc")
    first.append_to(transcript)

    assert transcript.turns == [Turn("user", "ab")]
    with pytest.raises(BadRequest):
        second.append_to(transcript)
