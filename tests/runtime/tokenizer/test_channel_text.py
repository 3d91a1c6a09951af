"""Text with channels: stop strings in the content alone, and the channel of every token.

The expected values are found in the whole answer, character by character, and not token by token.
"""

from dataclasses import dataclass, replace
from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from runtime.chat.channels import AnswerChannels
from runtime.chat.marks import DSML, SPELLING, THINK, THINK_END
from runtime.messages import Output, TokenLogprobs
from runtime.tokenizer.channel_text import ChannelText, TokenChannel
from runtime.tokenizer.choice import Choice, Delta, Finish
from runtime.tokenizer.detokenizer import Detokenizer
from runtime.tokenizer.stop_strings import StopTable
from tests.runtime.tokenizer.hard_answers import HARD
from tests.runtime.tokenizer.samples import EOS, spelling_of_bytes

WORDS = ("ab", "ba", "\n\n", "a\n\n", "\n\n<", "</", "b>", "é", "aé", "<b")
FIRST_WORD = 300
DSML_ID = 292
MARKS = {290: THINK, 291: THINK_END, DSML_ID: DSML}
BY_SIGN = {"(": 290, ")": 291, "@": DSML_ID}
STOPS = (
    "a",
    "b",
    "ab",
    "aba",
    "\n\n",
    "\n",
    "bé",
    "<",
    "a\n",
    "</think>",
    "ink>a",
    "DSML",
    "b\n\n<",
)


@cache
def backend() -> Tokenizer:
    """Return a tokenizer of bytes that has the words as well."""
    spelling = spelling_of_bytes()
    vocab = {character: byte for byte, character in spelling.items()}
    for number, word in enumerate(WORDS):
        vocab["".join(spelling[byte] for byte in word.encode())] = FIRST_WORD + number
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def token_ids(answer: str, widths: list[int]) -> list[int]:
    """Return tokens of `answer`: of those that may come next, the choice is by `widths`.

    "(", ")" and "@" are the control tokens.
    """
    ids: list[int] = []
    left = answer
    while left:
        if left[0] in BY_SIGN:
            ids.append(BY_SIGN[left[0]])
            left = left[1:]
            continue
        words = [w for w in WORDS if left.startswith(w)]
        pick = widths[len(ids) % len(widths)] % (len(words) + 1)
        if pick:
            ids.append(FIRST_WORD + WORDS.index(words[pick - 1]))
            left = left[len(words[pick - 1]) :]
        else:
            ids += left[0].encode()
            left = left[1:]
    return ids


@dataclass(frozen=True)
class Case:
    """An answer and how it is read."""

    ids: list[int]
    stops: tuple[str, ...]
    reasoning: bool
    calls: bool
    separate: bool
    least: int
    trim: bool

    def choice(self) -> Choice:
        """Return a choice that reads the answer."""
        text = ChannelText(
            Detokenizer(backend(), frozenset([EOS]), MARKS),
            self.channels(),
            StopTable.build(self.stops) if self.stops else None,
            min_new_tokens=self.least,
            trim=self.trim,
            marks=MARKS.keys(),
        )
        return Choice(0, 1, text, trim=self.trim)

    def channels(self) -> AnswerChannels:
        """Return what splits its text."""
        return AnswerChannels(reasoning=self.reasoning, calls=self.calls, separate=self.separate)


@dataclass(frozen=True)
class Shown:
    """One character of the answer, and what a client sees of it.

    token  number of the token that completes it
    group  a stop string lies within one group
    """

    channel: TokenChannel
    text: str
    shown: str
    token: int
    group: int


def characters(case: Case) -> list[Shown]:
    """Return all characters of the answer."""
    spelled: list[tuple[str, int]] = []
    pending = b""
    for number, token_id in enumerate(case.ids):
        mark = MARKS.get(token_id)
        if mark is not None:
            spelled.append((mark, number))
            continue
        pending += bytes([token_id]) if token_id < 256 else WORDS[token_id - FIRST_WORD].encode()
        try:
            text, pending = pending.decode(), b""
        except UnicodeDecodeError:
            continue
        spelled += [(character, number) for character in text]
    channels = case.channels()
    runs = channels.push("".join(character for character, _ in spelled)) + channels.finish()
    found: list[Shown] = []
    group = 0
    for run in runs:
        group += run.channel in ("reasoning", "call")
        channel = None if run.channel == "call" else run.channel
        for character in run.text:
            shown = character if run.text == run.shown else run.shown
            found.append(Shown(channel, character, shown, spelled[len(found)][1], group))
    return found


@dataclass(frozen=True)
class Expected:
    """What has to come out."""

    content: str
    reasoning: str
    matched: str | None
    tokens: int
    channels: list[TokenChannel]


def expected(case: Case) -> Expected:
    """Return what has to come out, by a search in the whole answer."""
    found = characters(case)
    for at, last in enumerate(found):
        if last.channel != "content" or last.token + 1 < case.least:
            continue
        group = [c for c in found[: at + 1] if (c.channel, c.group) == ("content", last.group)]
        before = "".join(c.shown for c in group[:-1])
        # A mark is spelled with several characters: the string may end inside.
        for length in range(1, len(last.shown) + 1):
            text = before + last.shown[:length]
            ends = [stop for stop in case.stops if text.endswith(stop)]
            if ends:
                stop = max(ends, key=len)
                cut = len(text) - len(stop)
                return _cut(case, found, at, stop, cut)
    channels = _channels(case, found)
    content, reasoning = _said(found, "content"), _said(found, "reasoning")
    return Expected(content, reasoning, None, len(case.ids), channels)


def _cut(case: Case, found: list[Shown], at: int, stop: str, left: int) -> Expected:
    """Return what comes out where character `at` completes `stop`.

    left  characters of its group that are before the stop string
    """
    last, kept = found[at], list[Shown]()
    for c in found[: at + 1]:
        if case.trim and (c.channel, c.group) == ("content", last.group):
            part, left = c.shown[: max(left, 0)], left - len(c.shown)
            if part:
                kept.append(replace(c, shown=part))
        else:
            kept.append(c)
    if not case.trim:
        # All text of the token; nothing comes that could make markup of it.
        rest = [c for c in found[at + 1 :] if c.token == last.token]
        kept += [replace(c, channel="content", shown=c.text) for c in rest]
    used = last.token + 1
    channels = _channels(case, kept)[:used]
    return Expected(_said(kept, "content"), _said(kept, "reasoning"), stop, used, channels)


def _said(found: list[Shown], channel: str) -> str:
    return "".join(c.shown for c in found if c.channel == channel)


def _channels(case: Case, found: list[Shown]) -> list[TokenChannel]:
    channels: list[TokenChannel] = [None] * len(case.ids)
    for c in found:
        if c.channel is not None:
            channels[c.token] = c.channel
    for number, token_id in enumerate(case.ids):
        # The first byte of "é": a part of the character that the next token completes.
        if token_id == 0xC3:
            channels[number] = next((c.channel for c in found if c.token == number + 1), None)
    return channels


def read(case: Case, size: int, *, merged: bool = False) -> list[Delta]:
    """Return the deltas of a choice that gets `size` tokens at a time, up to its end.

    merged  nobody reads before the end
    """
    choice, deltas = case.choice(), list[Delta]()
    for start in range(0, len(case.ids), size):
        ids = case.ids[start : start + size]
        choice.feed(Output(1, token_ids=ids, logprobs=TokenLogprobs([-1.0] * len(ids), ids)))
        if choice.finish is not None:
            return [*deltas, choice.take()]
        if not merged:
            deltas.append(choice.take())
    choice.feed(Output(1, token_ids=[EOS], finish="stop", matched_stop=EOS))
    return [*deltas, choice.take()]


answers = st.lists(
    st.sampled_from([*"ab\n<>()@é", "</", "\n\n", "ab", "\n\n<@", "</@"]), max_size=14
).map("".join)
cases = st.builds(
    Case,
    st.builds(token_ids, answers, st.lists(st.integers(0, 5), min_size=1, max_size=6)),
    st.lists(st.sampled_from(STOPS), max_size=3).map(tuple),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 0, 1, 2, 4]),
    st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(cases, st.sampled_from([1, 2, 3, 100]))
def test_it_agrees_with_a_search_in_the_whole_answer(case: Case, size: int) -> None:
    # Amid a stray closing tag, a part of a mark's spelling is taken for a part of the tag.
    assume(case.separate or "ink>a" not in case.stops or case.ids.count(DSML_ID) == 0)
    agrees(case, size)


@pytest.mark.parametrize(("ids", "stops", "flags", "least", "size"), HARD)
def test_it_agrees_with_a_search_in_answers_that_are_hard_to_read(
    ids: list[int], stops: tuple[str, ...], flags: str, least: int, size: int
) -> None:
    reasoning, calls, separate, trim = (flag in flags for flag in "rcst")
    case = Case(ids, stops, reasoning, calls, separate, least, trim)
    agrees(case, size)

    deltas, [whole] = read(case, size), read(case, size, merged=True)
    assert whole.text == "".join(delta.text for delta in deltas)
    assert whole.token_ids == [token_id for delta in deltas for token_id in delta.token_ids]
    assert whole.channels == [channel for delta in deltas for channel in delta.channels]
    assert whole.completion_tokens == deltas[-1].completion_tokens


def agrees(case: Case, size: int) -> None:
    """Verify what comes out of an answer that is read so many tokens at a time."""
    want = expected(case)

    deltas = read(case, size)

    channels = case.channels()
    runs = channels.push("".join(delta.text for delta in deltas)) + channels.finish()
    assert "".join(run.shown for run in runs if run.channel == "content") == want.content
    assert "".join(run.shown for run in runs if run.channel == "reasoning") == want.reasoning
    finish = deltas[-1].finish
    assert finish == Finish("stop", matched=EOS if want.matched is None else want.matched)
    ids = [token_id for delta in deltas for token_id in delta.token_ids]
    assert ids == [*case.ids[: want.tokens], *([EOS] if want.matched is None else [])]
    assert deltas[-1].completion_tokens == len(ids)
    given = [channel for delta in deltas for channel in delta.channels]
    # An untrimmed stop token has a channel, which is none: here it is hidden.
    assert given == [*want.channels, None][: len(given)]
    assert len(given) >= len(want.channels)
    for delta in deltas:
        assert delta.logprobs is None or delta.logprobs.ids == [
            i for i in delta.token_ids if i != EOS
        ]


@pytest.mark.parametrize(
    ("ids", "channels"),
    [
        # The mark ends a character that is not complete; the character is not the mark's.
        ([0xC3, BY_SIGN["("], 97, BY_SIGN[")"]], ["content", None, "reasoning", None]),
        # A hidden token, amid a character and outside of one.
        ([97, EOS, 0xC3, EOS, 0xA9], ["content", None, "content", None, "content"]),
        # Text and the beginning of markup in one token.
        ([98, FIRST_WORD + WORDS.index("a\n\n"), 60, DSML_ID], ["content", "content", None, None]),
    ],
)
def test_tokens_have_the_channel_that_shows_their_text(
    ids: list[int], channels: list[TokenChannel]
) -> None:
    case = Case(ids, (), reasoning=False, calls=True, separate=True, least=0, trim=True)

    for size in (1, 100):
        given = [channel for delta in read(case, size) for channel in delta.channels]
        assert given == channels


def test_a_stop_string_does_not_continue_across_reasoning() -> None:
    case = Case(
        token_ids("a(r)b", [0]), ("ab",),
        reasoning=False, calls=True, separate=True, least=0, trim=True,
    )  # fmt: skip

    deltas = read(case, 1)

    assert deltas[-1].finish == Finish("stop", matched=EOS)
    assert [delta.text for delta in deltas] == ["", "", f"a{THINK}r", THINK_END, "b", ""]
    assert [len(delta.token_ids) for delta in deltas] == [0, 0, 3, 1, 1, 1]


BA, AB = FIRST_WORD + WORDS.index("ba"), FIRST_WORD + WORDS.index("ab")


@pytest.mark.parametrize(
    ("ids", "stop", "pieces"),
    [
        ([BA, AB, ord(">")], "abc", [("b", 0), ("a", 1), ("ab>", 2), ("", 1)]),
        ([BA, ord("b"), BA], "ab\n", [("b", 0), ("", 0), ("abb", 2), ("a", 2)]),
        # A mark goes out as it is, though the stop string begins within its spelling.
        (
            [97, DSML_ID, 97],
            SPELLING[DSML][-2:] + "b",
            [("a", 1), ("", 0), (f"{DSML}a", 2), ("", 1)],
        ),
        ([97, BY_SIGN[")"], 99], "ab", [("", 0), ("", 0), (f"a{THINK_END}c", 3), ("", 1)]),
        ([97, 0xC3], "b", [("a", 1), ("", 0), ("\ufffd", 2)]),
        ([0xC3, 0xA9, 97, 99], "b", [("", 0), ("é", 2), ("a", 1), ("c", 1), ("", 1)]),
    ],
)
def test_text_and_its_tokens_go_out_once_they_are_no_part_of_a_stop_string(
    ids: list[int], stop: str, pieces: list[tuple[str, int]]
) -> None:
    case = Case(ids, (stop,), reasoning=False, calls=False, separate=True, least=0, trim=True)

    assert [(delta.text, len(delta.token_ids)) for delta in read(case, 1)] == pieces


@pytest.mark.parametrize("trim", [True, False])
def test_what_is_left_at_the_end_may_complete_a_stop_string(trim: bool) -> None:
    ends = {"\ufffd": [97, 0xC3], "\n\n": token_ids("a\n\n", [0]), "\n": token_ids("a\n\n", [0])}
    for stop, ids in ends.items():
        case = Case(ids, (stop,), reasoning=False, calls=True, separate=True, least=0, trim=trim)

        deltas = read(case, 1)

        assert deltas[-1].finish == Finish("stop", matched=stop)
        assert "".join(delta.text for delta in deltas) == ("a" if trim else f"a{stop}")
        assert [token_id for delta in deltas for token_id in delta.token_ids][:2] == ids[:2]
