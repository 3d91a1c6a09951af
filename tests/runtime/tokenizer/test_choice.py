"""One choice: text against tokens, stop strings, stop tokens, merged news."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.messages import Output, TokenLogprobs
from runtime.packed_logprobs import PromptLogprobs
from runtime.tokenizer.choice import Choice, ChoiceText, Delta, Finish, slices
from runtime.tokenizer.detokenizer import Detokenizer
from runtime.tokenizer.stop_strings import StopTable
from tests.runtime.tokenizer.samples import EOS, byte_tokenizer

BYTES = byte_tokenizer()


def choice(*stops: str, min_new_tokens: int = 0, trim: bool = True, skip: bool = True) -> Choice:
    """Return a choice over the byte tokenizer."""
    text = ChoiceText(
        Detokenizer(BYTES, frozenset([EOS]) if skip else frozenset()),
        StopTable.build(stops) if stops else None,
        min_new_tokens=min_new_tokens,
        trim=trim,
    )
    return Choice(0, 1, text, trim=trim)


def spoken(subject: Choice, text: str, size: int = 1) -> Choice:
    """Feed the bytes of `text`, so many at a time, until the choice has ended."""
    ids = list(text.encode())
    for start in range(0, len(ids), size):
        if subject.finish is None:
            subject.feed(Output(1, token_ids=ids[start : start + size]))
    return subject


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_stop_string_ends_the_choice_at_the_token_that_completes_it(size: int) -> None:
    delta = spoken(choice("STOP", "\n\n"), "over STOP and more", size).take()

    assert delta.text == "over "
    assert delta.finish == Finish("stop", matched="STOP")
    assert delta.completion_tokens == len("over STOP")
    assert delta.token_ids == list(b"over STOP")


def test_a_reader_that_keeps_up_leaves_nothing_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.tokenizer.choice.MOST_UNREAD_ENTRIES", 20)
    subject = choice()
    for _ in range(5):
        spoken(subject, "nine more")
        assert not subject.unread
        subject.take()

    assert not spoken(subject, "nine and nine more..").unread
    assert spoken(subject, "!").unread
    subject.streams = False  # all of it comes at once, and is read at once
    assert not subject.unread


def test_without_trimming_the_text_is_that_of_its_tokens() -> None:
    delta = spoken(choice("STOP", trim=False), "over STOP and more").take()

    assert delta.text == "over STOP"
    assert delta.finish == Finish("stop", matched="STOP")


@pytest.mark.parametrize(("least", "text"), [(0, ""), (2, ""), (3, "ab"), (4, "ab"), (5, "abab")])
def test_a_stop_string_counts_only_from_the_least_number_of_tokens_on(
    least: int, text: str
) -> None:
    subject = spoken(choice("ab", min_new_tokens=least), "abab")
    if subject.finish is None:
        subject.feed(Output(1, finish="length"))

    assert subject.take().text == text


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="ab é😀", max_size=20), st.sampled_from([("b ",), ("é",), ("ab", "😀a")]))
def test_stop_strings_agree_with_a_search_in_the_whole_text(
    text: str, stops: tuple[str, ...]
) -> None:
    subject = spoken(choice(*stops), text)
    if subject.finish is None:
        subject.feed(Output(1, finish="length"))
    news = subject.take().text

    found = [text.find(stop) + len(stop) for stop in stops if stop in text]
    expected = text[: min(found)] if found else text
    for stop in stops:
        expected = expected.removesuffix(stop) if found else expected
    assert news == expected


def test_a_stop_token_is_counted_but_not_spelled() -> None:
    subject = choice(skip=False)
    subject.feed(Output(1, token_ids=[0x61, 0x62], finish="stop", matched_stop=0x62))
    delta = subject.take()

    assert (delta.text, delta.token_ids, delta.completion_tokens) == ("a", [0x61, 0x62], 2)
    assert delta.finish == Finish("stop", matched=0x62)


def test_a_stop_token_is_spelled_without_trimming() -> None:
    subject = choice(trim=False, skip=False)
    subject.feed(Output(1, token_ids=[0x61, EOS], finish="stop", matched_stop=EOS))

    assert subject.take().text == "a<eos>"


def test_held_back_text_goes_out_at_the_end() -> None:
    subject = spoken(choice("STOP"), "an ST")
    assert subject.take().text == "an "

    subject.feed(Output(1, finish="length"))

    delta = subject.take()
    assert (delta.text, delta.token_ids, delta.finish) == ("ST", [], Finish("length"))
    assert delta.completion_tokens == 5


@pytest.mark.parametrize(("trim", "text"), [(True, ""), (False, "a\ufffd")])
def test_what_is_held_back_may_complete_a_stop_string_at_the_end(trim: bool, text: str) -> None:
    subject = choice("a\ufffd", trim=trim)
    subject.feed(Output(1, token_ids=[0x61, 0xC3]))
    assert subject.take().text == ""
    subject.feed(Output(1, finish="length"))

    delta = subject.take()
    assert (delta.text, delta.finish) == (text, Finish("stop", matched="a\ufffd"))
    assert delta.completion_tokens == 2


def test_an_abort_from_this_side_gives_out_what_there_is() -> None:
    subject = spoken(choice("STOP"), "an ST")

    subject.cut(Finish("abort", message="why"))

    delta = subject.take()
    assert (delta.text, delta.finish) == ("an ST", Finish("abort", message="why"))


def test_news_that_nobody_fetched_is_merged() -> None:
    subject = choice()
    subject.feed(
        Output(1, token_ids=[0x61], prompt_tokens=5, cached_tokens=4, logprobs=logprobs([0x61]))
    )
    subject.feed(Output(1, token_ids=[0x62, 0x63], logprobs=logprobs([0x62, 0x63])))
    delta = subject.take()

    assert (delta.text, delta.token_ids) == ("abc", [0x61, 0x62, 0x63])
    assert delta.logprobs == logprobs([0x61, 0x62, 0x63])
    assert (delta.prompt_tokens, delta.cached_tokens, delta.completion_tokens) == (5, 4, 3)
    assert subject.take() == Delta(0, "", [], None, 5, 4, 3)


def test_counts_stay_on_later_deltas_and_prompt_logprobs_come_once() -> None:
    subject = choice()
    subject.feed(
        Output(
            1, token_ids=[1], prompt_tokens=5, cached_tokens=4, prompt_logprobs=PromptLogprobs(7)
        )
    )
    first = subject.take()
    subject.feed(Output(1, token_ids=[2], finish="length"))
    second = subject.take()

    assert first.prompt_logprobs == PromptLogprobs(7)
    assert second.prompt_logprobs is None
    assert (second.prompt_tokens, second.cached_tokens, second.completion_tokens) == (5, 4, 2)


def test_logprobs_end_with_the_tokens_at_a_stop_string() -> None:
    subject = choice("b")
    subject.feed(Output(1, token_ids=list(b"abc"), logprobs=logprobs(list(b"abc"))))

    assert subject.take().logprobs == logprobs(list(b"ab"))


def test_an_error_keeps_its_message() -> None:
    subject = choice()
    subject.feed(Output(1, finish="error", error="logits are not finite"))

    assert subject.take().finish == Finish("error", message="logits are not finite")


def test_a_long_output_is_sliced_without_loss() -> None:
    ids = [i % 100 for i in range(10)]
    item = Output(
        1,
        token_ids=ids,
        finish="stop",
        matched_stop=9,
        prompt_tokens=3,
        prompt_logprobs=PromptLogprobs(1),
        logprobs=logprobs(ids),
    )

    parts = list(slices(item, 4))

    assert [len(part.token_ids) for part in parts] == [4, 4, 2]
    assert [part.finish for part in parts] == [None, None, "stop"]
    assert [part.prompt_logprobs is not None for part in parts] == [True, False, False]
    whole, sliced = choice(), choice()
    whole.feed(item)
    for part in parts:
        sliced.feed(part)
    assert sliced.take() == whole.take()
    assert list(slices(item, 10)) == [item]


def logprobs(ids: list[int]) -> TokenLogprobs:
    """Return log-probabilities that tell the token apart."""
    return TokenLogprobs(
        [-float(i) for i in ids], ids, [[(-float(i), i)] for i in ids], [[] for _ in ids]
    )
