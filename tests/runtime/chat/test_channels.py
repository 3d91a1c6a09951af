"""Channels of an answer: runs that keep every character, whatever the pieces are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.chat.answer_parser import AnswerParser, Text
from runtime.chat.channels import AnswerChannels, Channel, Run
from runtime.chat.marks import DSML, THINK, THINK_END

PIECES = [THINK, THINK_END, DSML, "\n", "<", "</", ">", "a", "\n\n<" + DSML, "</" + DSML]


def runs_of(channels: AnswerChannels, *pieces: str) -> list[Run]:
    """Return all runs of an answer."""
    return [run for piece in pieces for run in channels.push(piece)] + channels.finish()


def by_character(runs: list[Run]) -> list[tuple[Channel | None, str]]:
    """Return the channel of every character, and the spelling of the marks that are shown."""
    return [
        (run.channel, character if run.text == run.shown else run.shown)
        for run in runs
        for character in run.text
    ]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), max_size=12),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_runs_are_the_answer_whatever_its_pieces_are(
    pieces: list[str], reasoning: bool, calls: bool, separate: bool
) -> None:
    def channels() -> AnswerChannels:
        return AnswerChannels(reasoning=reasoning, calls=calls, separate=separate)

    whole = "".join(pieces)
    runs = runs_of(channels(), *pieces)

    assert "".join(run.text for run in runs) == whole
    assert by_character(runs) == by_character(runs_of(channels(), whole))
    assert by_character(runs) == by_character(runs_of(channels(), *whole))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12), st.booleans(), st.booleans())
def test_what_is_shown_is_what_the_parser_says(
    pieces: list[str], calls: bool, separate: bool
) -> None:
    parser = AnswerParser(reasoning=True, tools={} if calls else None, separate=separate)
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
    runs = runs_of(AnswerChannels(reasoning=True, calls=calls, separate=separate), *pieces)

    for channel in ("reasoning", "content"):
        said = [p.text for p in parts if isinstance(p, Text) and p.channel == channel]
        assert "".join(said) == "".join(run.shown for run in runs if run.channel == channel)


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("r)c", [("reasoning", "r", "r"), (None, THINK_END, ""), ("content", "c", "c")]),
        ("()c", [(None, THINK, ""), (None, THINK_END, ""), ("content", "c", "c")]),
        (
            ")a\n\n<@x>(b@",
            [
                (None, THINK_END, ""),
                ("content", "a", "a"),
                ("call", "\n\n<" + DSML, ""),
                ("call", "x>", ""),
                (None, THINK, ""),
                ("call", "b", ""),
                ("call", DSML, ""),
            ],
        ),
        (
            ")a</@x>b",
            [
                (None, THINK_END, ""),
                ("content", "a", "a"),
                (None, "</" + DSML, ""),
                (None, "x>", ""),
                ("content", "b", "b"),
            ],
        ),
        (
            "</@x)c>",
            [
                (None, "</" + DSML, ""),
                (None, "x", ""),
                (None, THINK_END, ""),
                ("content", "c>", "c>"),
            ],
        ),
    ],
)
def test_an_answer_has_these_runs(text: str, runs: list[Run]) -> None:
    """In `text`, "@", "(" and ")" stand for the marks."""
    marked = text.replace("@", DSML).replace("(", THINK).replace(")", THINK_END)

    assert runs_of(AnswerChannels(reasoning=True, calls=True), marked) == runs


def test_marks_that_are_content_are_spelled() -> None:
    channels = AnswerChannels(reasoning=True, calls=False, separate=False)

    assert runs_of(channels, "r" + THINK_END + DSML) == [
        ("content", "r", "r"),
        ("content", THINK_END, "</think>"),
        ("content", DSML, "｜DSML｜"),
    ]
