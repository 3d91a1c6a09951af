"""Tests of runtime.server.segments: answers that a stop string ended, as ids and text."""

import pytest

from runtime.server.segments import Ended, Segment, plain_segments
from runtime.tokenizer.tokenizer import TextTokenizer
from tests.testing.stand_in.tokenizer import train_tokenizer

TOKENIZER = TextTokenizer(train_tokenizer(), {})


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


WROTE = [*ids("The reader has"), *ids(".\n")]


@pytest.mark.parametrize(
    ("text", "following", "kept", "rest"),
    [
        # What follows begins with what the model wrote: all of its ids stay.
        ("The reader has", ".\nNext", WROTE, ["Next"]),
        ("The reader has", ".\n", WROTE, []),
        # It does not: the ids before the stop string stay.
        ("The reader has", "!", ids("The reader has"), ["!"]),
        ("The reader", "", ids("The reader"), []),
        # The answer ends inside of a token.
        ("The read", "y", ids("The"), [" ready"]),
        # The ids spell something else.
        ("Something", "!", [], ["Something!"]),
    ],
)
def test_ids_are_kept_as_far_as_they_spell_the_text(
    text: str, following: str, kept: list[int], rest: list[str]
) -> None:
    plain = plain_segments(TOKENIZER, ["So ", Ended(text, WROTE), following])

    assert plain == ["So ", *([kept] if kept else []), *rest]


def test_a_character_of_several_tokens_is_kept_whole_or_left_to_the_text() -> None:
    wrote = ids("aé🙂b")
    part = next(k for k in range(len(wrote)) if "\ufffd" in TOKENIZER.decode(wrote[:k]))

    whole = plain_segments(TOKENIZER, [Ended("aé🙂", wrote)])
    cut = plain_segments(TOKENIZER, [Ended("aé", wrote[:part])])

    assert [TOKENIZER.decode(s) if isinstance(s, list) else s for s in whole] == ["aé🙂"]
    assert "".join(TOKENIZER.decode(s) if isinstance(s, list) else s for s in cut) == "aé"


def test_other_segments_stay_as_they_are() -> None:
    segments: list[Segment] = ["a", [7, 8], "", [], Ended("b", [])]

    assert plain_segments(TOKENIZER, segments) == ["a", [7, 8], "", [], "b"]
