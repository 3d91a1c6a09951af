"""Tests of runtime.server.openai."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from runtime.messages import TokenLogprobs
from runtime.server.openai import (
    LegacyLogprobs,
    chat_logprobs,
    finish_fields,
    rendered,
    usage_report,
)
from runtime.server.runs import Tally
from runtime.server.spelling import Speller
from runtime.tokenizer.channel_text import TokenChannel
from runtime.tokenizer.choice import Finish
from runtime.tokenizer.tokenizer import TextTokenizer
from tests.runtime.server.engine import byte_tokenizer, text_ids


def test_a_prompt_counts_once_whatever_the_number_of_choices() -> None:
    tallies = [[Tally(10, 4, 3), Tally(10, 10, 5)], [Tally(7, 0, 1)]]

    assert usage_report(tallies) == {
        "prompt_tokens": 17,
        "completion_tokens": 9,
        "total_tokens": 26,
        "prompt_tokens_details": {"cached_tokens": 4},
        "prompt_cache_hit_tokens": 4,
        "prompt_cache_miss_tokens": 13,
    }


def test_the_finish_keeps_what_matched() -> None:
    assert finish_fields(None) == {"finish_reason": None}
    stop = finish_fields(Finish("stop", matched="x"))
    assert stop == {"finish_reason": "stop", "matched_stop": "x"}
    assert finish_fields(Finish("abort"))["finish_reason"] == "abort"


def test_log_probabilities_of_a_chat_are_split_by_channel() -> None:
    speller = Speller(TextTokenizer(byte_tokenizer(), {}))
    ids = text_ids("abcd")
    tops = [[(-0.5, token_id)] for token_id in ids]
    channels: list[TokenChannel] = ["reasoning", None, "content"]

    logprobs = chat_logprobs(TokenLogprobs([-1.0, -2.0, -3.0, -4.0], ids, tops), channels, speller)

    for field, text, value in (("reasoning_content", "a", -1.0), ("content", "c", -3.0)):
        shown = {"token": text, "bytes": list(text.encode())}
        assert logprobs[field] == [
            {**shown, "logprob": value, "top_logprobs": [{**shown, "logprob": -0.5}]}
        ]
    assert chat_logprobs(TokenLogprobs(), [], speller) == {"content": [], "refusal": None}


def test_others_have_turns_between_choices_that_are_rendered() -> None:
    threads: list[int] = []
    turns = 0

    class Manager:
        async def in_thread(self, work: Callable[[], int], *, chars: int) -> int:
            threads.append(work())
            return threads[-1]

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def render() -> None:
        beside = asyncio.create_task(others())
        manager: Any = Manager()
        for number in range(10):
            count = 1 << 20 if number == 7 else 20
            assert await rendered(manager, count, partial(int, number)) == number
        beside.cancel()

    asyncio.run(render())

    assert turns >= 9
    assert threads == [7]


def test_offsets_go_on_from_piece_to_piece_and_count_characters() -> None:
    legacy = LegacyLogprobs(Speller(TextTokenizer(byte_tokenizer(), {})), frozenset())
    ids = text_ids("aé\U0001f600b")

    offsets: list[int] = []
    for cut in (ids[:2], ids[2:5], ids[5:]):
        told = legacy.render(TokenLogprobs([-1.0] * len(cut), cut), top=False)
        offsets += told["text_offset"]

    assert offsets == [0, 1, 2, 2, 3, 3, 3, 3]


def test_offsets_count_bytes_that_are_no_character_as_the_text_shows_them() -> None:
    tokenizer = TextTokenizer(byte_tokenizer(), {})
    legacy = LegacyLogprobs(Speller(tokenizer), frozenset())
    accent, smile = text_ids("é"), text_ids("\U0001f600")
    # A stray end, a beginning that nothing ends, a character that is cut short, one that is whole.
    ids = [accent[1], *text_ids("a"), accent[0], *text_ids("b"), *smile[:2], *text_ids("c"), *smile]

    told = legacy.render(TokenLogprobs([-1.0] * len(ids), ids), top=False)

    text = tokenizer.decode(ids)
    assert [text[at] for at in told["text_offset"][:-3]] == list("\ufffda\ufffdb\ufffdcc\U0001f600")
    assert text == "\ufffda\ufffdb\ufffdc\U0001f600"


def test_the_sampled_token_is_among_the_alternatives() -> None:
    legacy = LegacyLogprobs(Speller(TextTokenizer(byte_tokenizer(), {})), frozenset())
    a, b = text_ids("ab")

    told = legacy.render(TokenLogprobs([-3.0], [a], [[(-0.1, b)]]), top=True)

    assert told["top_logprobs"] == [{"b": -0.1, "a": -3.0}]
