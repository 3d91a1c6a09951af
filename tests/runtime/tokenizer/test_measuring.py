"""What an observer hears of a choice, from the news of it and the times they came."""

from dataclasses import asdict

import pytest

from runtime.messages import FinishType, Output
from runtime.tokenizer.choice import Choice, ChoiceText
from runtime.tokenizer.detokenizer import Detokenizer
from runtime.tokenizer.measuring import decode_seconds, hear_end, hear_news, hear_tokens
from runtime.tokenizer.observer import ChoiceEnd, Observer, Stage
from tests.runtime.tokenizer.samples import byte_tokenizer

BYTES = byte_tokenizer()


class Heard(Observer):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def stage(self, stage: Stage, seconds: float) -> None:
        self.events.append((stage, seconds))

    def first_token(self, seconds: float) -> None:
        self.events.append(seconds)

    def inter_token(self, seconds: float, tokens: int) -> None:
        self.events.append((seconds, tokens))

    def finished(self, end: ChoiceEnd) -> None:
        facts = asdict(end)
        self.events.append((facts.pop("reason"), facts))


@pytest.fixture
def choice() -> Choice:
    """A choice of which there are no news yet."""
    text = ChoiceText(Detokenizer(BYTES, frozenset()), None, min_new_tokens=0, trim=True)
    return Choice(0, 1, text, trim=True)


def test_the_first_news_tell_the_stages_before_them_once(choice: Choice) -> None:
    heard = Heard()

    hear_news(heard, choice, Output(1, finish="abort", queue_s=1.0), now_s=8.0)
    hear_news(heard, choice, Output(1, [7], queue_s=2.0, prefill_s=3.0), now_s=9.0)
    hear_news(heard, choice, Output(1, [8]), now_s=10.0)

    assert heard.events == [("prefill_waiting", 2.0), ("prefill_forward", 3.0)]
    assert choice.begun_s == 9.0


def test_tokens_that_come_together_share_the_time_since_the_last_ones(choice: Choice) -> None:
    heard = Heard()

    hear_tokens(heard, choice, 1, started_s=5.0, now_s=9.0)
    hear_tokens(heard, choice, 0, started_s=5.0, now_s=9.5)
    hear_tokens(heard, choice, 4, started_s=5.0, now_s=11.0)

    assert heard.events == [4.0, (0.5, 4)]


def test_tokens_kept_to_the_end_have_no_times(choice: Choice) -> None:
    heard = Heard()
    choice.streams = False

    hear_tokens(heard, choice, 3, started_s=5.0, now_s=9.0)

    assert heard.events == []


@pytest.mark.parametrize(
    ("finish", "seconds"), [("stop", 6.0), ("length", 6.0), ("abort", None), ("error", None)]
)
def test_the_scheduler_says_how_long_a_whole_answer_decoded(
    choice: Choice, finish: FinishType, seconds: float | None
) -> None:
    choice.begun_s = 9.0

    assert decode_seconds(choice, Output(1, finish=finish, decode_s=6.0), now_s=20.0) == seconds


def test_an_end_found_in_the_text_is_timed_from_the_first_news(choice: Choice) -> None:
    choice.begun_s = 9.0

    assert decode_seconds(choice, Output(1, [7]), now_s=11.5) == 2.5


def test_the_end_of_a_choice_tells_its_size(choice: Choice) -> None:
    heard = Heard()
    choice.prompt_tokens, choice.cached_tokens, choice.completion_tokens = 5, 4, 3

    hear_end(heard, choice, "stop", decode_s=1.5, started_s=2.0, now_s=9.0)

    facts = {"index": 0, "seconds": 7.0, "decode_s": 1.5}
    sizes = {"prompt_tokens": 5, "cached_tokens": 4, "completion_tokens": 3}
    assert heard.events == [("stop", facts | sizes)]
