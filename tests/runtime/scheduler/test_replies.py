"""What is sent of a request, when, and only once."""

import numpy as np

from runtime.grammar.output import GrammarOutput
from runtime.messages import Generate, Logprobs, Output, Sampling, TokenLogprobs, pack_ids
from runtime.packed_logprobs import PromptLogprobs
from runtime.scheduler.replies import MOST_ENTRIES, Replies, in_messages
from runtime.scheduler.request import Request
from tests.testing.prompt_logprobs import packed_prompt


def make(
    prompt: list[int], *, stream: bool = True, logprobs: Logprobs | None = None, request_id: int = 1
) -> Request:
    sampling = Sampling(max_new_tokens=9, seed=0)
    message = Generate(request_id, pack_ids(prompt), sampling, logprobs=logprobs, stream=stream)
    request = Request(message, (), 0.0)
    request.cached_tokens = 2
    return request


def test_a_streaming_request_hears_each_token_once() -> None:
    replies, request = Replies(), make([1, 2, 3])
    replies.token(request, 7, None)
    replies.token(request, 8, None)
    (first,) = replies.take()
    assert replies.take() == []
    replies.token(request, 9, None)
    (second,) = replies.take()

    assert (first.token_ids, second.token_ids) == ([7, 8], [9])
    assert (first.prompt_tokens, first.cached_tokens) == (3, 2)
    assert (second.prompt_tokens, second.cached_tokens) == (0, 0)
    assert first.finish is None


def test_what_is_forgotten_for_now_comes_with_the_next_token() -> None:
    replies, request = Replies(), make([1, 2, 3])
    replies.token(request, 7, None)
    replies.forget(request)
    assert replies.take() == []
    replies.token(request, 8, None)
    (first,) = replies.take()

    assert (first.token_ids, first.prompt_tokens) == ([7, 8], 3)


def test_a_request_that_does_not_stream_gets_one_reply_with_everything() -> None:
    replies, request = Replies(), make([1, 2, 3], stream=False)
    for token in (7, 8, 9):
        replies.token(request, token, TokenLogprobs([-0.5], [token]))
        assert replies.take() == []
    replies.finish(request, "stop", matched=9)
    (reply,) = replies.take()

    assert reply.token_ids == [7, 8, 9]
    assert (reply.finish, reply.matched_stop, reply.prompt_tokens) == ("stop", 9, 3)
    assert reply.logprobs is not None
    assert reply.logprobs.ids == [7, 8, 9]


def test_the_last_token_and_the_end_are_one_reply() -> None:
    replies, request = Replies(), make([1])
    replies.token(request, 7, None)
    replies.finish(request, "length")

    (reply,) = replies.take()

    assert (reply.token_ids, reply.finish) == ([7], "length")


def test_nothing_more_is_said_of_a_forgotten_request() -> None:
    replies, gone, other = Replies(), make([1]), make([2], request_id=2)
    replies.token(gone, 7, None)
    replies.token(other, 8, None)

    replies.forget(gone)

    assert [item.request_id for item in replies.take()] == [2]


def test_an_error_says_why() -> None:
    replies, request = Replies(), make([1])

    replies.finish(request, "error", error="logits are not finite")

    (reply,) = replies.take()
    assert (reply.finish, reply.error, reply.token_ids) == ("error", "logits are not finite", [])


def test_prompt_values_of_many_chunks_arrive_as_one_with_the_first_reply() -> None:
    wanted = Logprobs(start=1, top=1, token_ids=(4,))
    replies, request = Replies(), make([10, 11, 12, 13], logprobs=wanted)
    for token in (12, 13):
        told = TokenLogprobs([None, -1.0], [0, token], [[], [(-0.5, 3)]], [[], [(-2.0, 4)]])
        request.outgoing.prompt_logprobs += packed_prompt(told).spans
    replies.token(request, 7, None)
    (first,) = replies.take()
    replies.token(request, 8, None)
    (second,) = replies.take()

    assert first.prompt_logprobs is not None
    prompt = first.prompt_logprobs.part(0, None)
    assert prompt.ids == [11, 12, 13]
    assert prompt.values == [None, -1.0, -1.0]
    assert prompt.top == [[], [(-0.5, 3)], [(-0.5, 3)]]
    assert prompt.picked == [[], [(-2.0, 4)], [(-2.0, 4)]]
    assert second.prompt_logprobs is None


def test_from_the_last_prompt_token_on_there_is_one_token_without_a_value() -> None:
    replies, last, none = Replies(), make([5, 6], logprobs=Logprobs(1)), make([5, 6], request_id=2)
    none.logprobs = Logprobs(2)
    replies.finish(last, "length")
    replies.finish(none, "length")

    first, second = replies.take()

    assert first.prompt_logprobs == PromptLogprobs(6)
    assert second.prompt_logprobs is None


def test_log_probabilities_of_a_request_that_does_not_stream_come_in_parts() -> None:
    replies, request = Replies(), make([5], logprobs=Logprobs(9), stream=False)
    parts: list[int] = []
    for token in range(150):
        replies.token(request, token, TokenLogprobs([-1.0], [token]))
        parts += [len(item.token_ids) for item in replies.take()]
    replies.finish(request, "length")
    (last,) = replies.take()

    assert parts == [64, 64]
    assert last.token_ids == list(range(128, 150))
    assert last.logprobs is not None
    assert last.logprobs.ids == last.token_ids


def test_chunks_and_the_time_of_a_grammar_are_told_once() -> None:
    sampling = Sampling(max_new_tokens=9, seed=0)
    request = Request(Generate(1, pack_ids([1, 2, 3]), sampling, traced=True), (), 0.0)
    request.constraint = GrammarOutput(1, None, np.zeros(1, np.int32), accept=lambda _: None)
    request.constraint.compile_s = 0.5
    request.times.chunk(2, 1.0)
    request.times.chunk(3, 2.0)
    replies = Replies()

    replies.token(request, 7, None)
    (first,) = replies.take()
    replies.token(request, 8, None)
    (second,) = replies.take()

    assert (first.chunks, first.grammar_s) == ([(2, 1.0), (3, 2.0)], 0.5)
    assert (second.chunks, second.grammar_s) == ([], 0.0)


def test_a_request_keeps_few_tokens_back_where_each_has_many_log_probabilities() -> None:
    replies, request = Replies(), make([5], logprobs=Logprobs(9, 0, (1,)), stream=False)
    pairs = [(-1.0, k) for k in range(1000)]
    parts: list[int] = []
    for token in range(20):
        replies.token(request, token, TokenLogprobs([-1.0], [token], [], [pairs]))
        parts += [len(item.token_ids) for item in replies.take()]

    assert parts == [9, 9]


def test_messages_hold_so_many_log_probabilities_and_news_of_others_any_number() -> None:
    pairs = [(-1.0, k) for k in range(MOST_ENTRIES // 3)]
    heavy = TokenLogprobs([-1.0], [7], [pairs])
    items = [Output(k, [7], logprobs=heavy if k % 2 else None) for k in range(12)]

    parts = list(in_messages(items))

    assert [item for part in parts for item in part] == items
    assert [sum(item.logprobs is not None for item in part) for part in parts] == [2, 2, 2]
    assert list(in_messages(items[:1] * 500)) == [items[:1] * 500]
