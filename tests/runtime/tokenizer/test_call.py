"""What a call may hold, and what becomes of it."""

import itertools
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from runtime.errors import BadRequest, PromptTooLong
from runtime.messages import Generate, Logprobs, Output, Sampling, pack_ids, unpack_ids
from runtime.sampling import SamplingSpec
from runtime.share import Share
from runtime.tokenizer.call import (
    GenerateCall,
    Limits,
    make_choices,
    make_requests,
    pack_prompt,
    turn_boundaries,
)
from runtime.tokenizer.channel_text import Run
from runtime.tokenizer.tokenizer import TextTokenizer
from tests.runtime.tokenizer.samples import VOCAB, byte_tokenizer, write_checkpoint

LIMITS = Limits(context_tokens=32, vocab_size=VOCAB)
NO_TEXT = TextTokenizer(None, {})


@pytest.fixture
def tokenizer(tmp_path: Path) -> TextTokenizer:
    """The byte tokenizer."""
    return TextTokenizer.load(write_checkpoint(tmp_path, byte_tokenizer()))


def test_text_and_ids_become_the_same_prompt(tokenizer: TextTokenizer) -> None:
    spec = SamplingSpec()
    text = pack_prompt(GenerateCall(spec, text="hé"), tokenizer, LIMITS)
    ids = pack_prompt(GenerateCall(spec, input_ids=list("hé".encode())), tokenizer, LIMITS)
    array = np.frombuffer("hé".encode(), np.uint8)

    assert text == ids == pack_prompt(GenerateCall(spec, input_ids=array), tokenizer, LIMITS)
    assert unpack_ids(text).tolist() == list("hé".encode())


@pytest.mark.parametrize(
    "ids",
    [[], [-1], [VOCAB], [2**40], [2**70], [1.5], [True], [None], [[1, 2]], ["a"]],
    ids=str,
)
def test_ids_that_are_none_are_refused(ids: list[int]) -> None:
    with pytest.raises(BadRequest):
        pack_prompt(GenerateCall(SamplingSpec(), input_ids=ids), NO_TEXT, LIMITS)


@pytest.mark.parametrize(("text", "ids"), [(None, None), ("a", [1])])
def test_exactly_one_of_text_and_ids_is_needed(text: str | None, ids: list[int] | None) -> None:
    with pytest.raises(BadRequest, match="either"):
        pack_prompt(GenerateCall(SamplingSpec(), text=text, input_ids=ids), NO_TEXT, LIMITS)


def test_an_empty_text_is_refused(tokenizer: TextTokenizer) -> None:
    with pytest.raises(BadRequest, match="empty"):
        pack_prompt(GenerateCall(SamplingSpec(), text=""), tokenizer, LIMITS)


class _Watched(TextTokenizer):
    """Counts the characters that are tokenised."""

    characters = 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.characters += len(text)
        return super().encode(text, add_special_tokens=add_special_tokens)


def test_of_a_text_that_cannot_fit_only_the_beginning_is_tokenised() -> None:
    tokenizer = _Watched(byte_tokenizer(), {})

    with pytest.raises(PromptTooLong, match="more than 64 tokens"):
        pack_prompt(GenerateCall(SamplingSpec(), text="hello " * 100_000), tokenizer, LIMITS)

    assert tokenizer.characters == 16 * LIMITS.context_tokens


def test_more_ids_than_the_context_holds_are_not_even_looked_at() -> None:
    call = GenerateCall(SamplingSpec(), input_ids=[-1] * (LIMITS.context_tokens + 1))

    with pytest.raises(PromptTooLong, match=f"has {LIMITS.context_tokens + 1} tokens"):
        pack_prompt(call, TextTokenizer(None, {}), LIMITS)
    most = GenerateCall(SamplingSpec(), input_ids=[1] * LIMITS.context_tokens)
    assert len(pack_prompt(most, NO_TEXT, LIMITS)) == 4 * LIMITS.context_tokens


def test_a_long_text_of_few_tokens_is_no_endless_one() -> None:
    backend = byte_tokenizer()
    backend.add_tokens(["-" * 50])
    call = GenerateCall(SamplingSpec(), text="-" * 50 * LIMITS.context_tokens)

    prompt = pack_prompt(call, TextTokenizer(backend, {}), LIMITS)

    assert len(unpack_ids(prompt)) == LIMITS.context_tokens


@pytest.mark.parametrize(
    ("tokens", "choices", "asked", "fits"),
    [
        (40_000, 1, Logprobs(0, top=20), True),
        (40_000, 1, Logprobs(0, top=128), False),
        (40_000, 1, Logprobs(39_000, top=128), True),
        (40_000, 1, Logprobs(1 << 30, top=128), True),
        (4_000, 64, Logprobs(0, top=20), False),
        (4_000, 2, Logprobs(0, token_ids=tuple(range(600))), False),
        (1 << 20, 1, Logprobs(0), True),
    ],
)
def test_log_probabilities_of_a_prompt_are_bounded_in_all(
    tokens: int, choices: int, asked: Logprobs, fits: bool
) -> None:
    limits = Limits(context_tokens=1 << 21, vocab_size=VOCAB)
    call = GenerateCall(SamplingSpec(n=choices), input_ids=[1], logprobs=asked)

    with nullcontext() if fits else pytest.raises(BadRequest, match="at most 4194304 in all"):
        make_requests(call, bytes(4 * tokens), limits, seed=0, ids=itertools.count())


def test_each_choice_becomes_a_request_with_a_seed_of_its_own() -> None:
    call = GenerateCall(
        SamplingSpec(n=3, max_new_tokens=4),
        input_ids=[1, 2, 9],
        logprobs=Logprobs(2),
        namespace="tenant",
        priority=5,
        share=Share("key", max_running=2),
        timeout_s=7.0,
        stream=False,
        rid="label",
        measured=False,
        boundaries=(2, 1, 2),
    )
    prompt = pack_prompt(call, NO_TEXT, LIMITS)

    requests = make_requests(
        call, prompt, LIMITS, seed=11, ids=itertools.count(100), turn_id=9, traced=True
    )

    samplings = call.sampling.resolve_all(3, LIMITS.context_tokens, LIMITS.vocab_size, seed=11)
    assert len({sampling.seed for sampling in samplings}) == 3
    assert requests == [
        Generate(
            request_id=100 + number,
            input_ids=prompt,
            sampling=sampling,
            logprobs=Logprobs(2),
            namespace="tenant",
            priority=5,
            stream=False,
            background=True,
            boundaries=(1, 2, 3),
            share=Share("key", max_running=2),
            timeout_s=7.0,
            traced=True,
        )
        for number, sampling in enumerate(samplings)
    ]


def test_a_call_that_asks_for_nothing_special_becomes_a_plain_request() -> None:
    call = GenerateCall(SamplingSpec(max_new_tokens=4), input_ids=[1])

    requests = make_requests(call, pack_ids([1]), LIMITS, seed=3, ids=itertools.count(7))

    assert requests == [Generate(7, pack_ids([1]), Sampling(4, 3), stream=True)]
    assert (requests[0].priority, requests[0].background) == (0, False)


def test_stop_strings_make_the_scheduler_stream() -> None:
    call = GenerateCall(SamplingSpec(stop=("x",)), input_ids=[1], stream=False)

    (request,) = make_requests(
        call, pack_prompt(call, NO_TEXT, LIMITS), LIMITS, seed=0, ids=itertools.count()
    )

    assert request.stream


def test_a_prompt_beyond_the_context_is_too_long() -> None:
    call = GenerateCall(SamplingSpec(max_new_tokens=3), input_ids=[1] * 30)

    with pytest.raises(PromptTooLong):
        make_requests(
            call, pack_prompt(call, NO_TEXT, LIMITS), LIMITS, seed=0, ids=itertools.count()
        )


def test_choices_follow_their_requests(tokenizer: TextTokenizer) -> None:
    call = GenerateCall(SamplingSpec(n=2), input_ids=[1, 2, 3])
    requests = make_requests(
        call, pack_prompt(call, tokenizer, LIMITS), LIMITS, seed=0, ids=itertools.count(7)
    )

    choices = make_choices(call, requests, tokenizer)

    assert [(c.index, c.request_id, c.prompt_tokens) for c in choices] == [(0, 7, 3), (1, 8, 3)]


@pytest.mark.parametrize(
    ("stop", "logprobs", "split"),
    [((), None, False), (("b",), None, True), ((), Logprobs(99), True)],
)
def test_text_is_split_into_channels_only_where_they_matter(
    tokenizer: TextTokenizer, stop: tuple[str, ...], logprobs: Logprobs | None, split: bool
) -> None:
    made: list[Nothing] = []

    def channels() -> Nothing:
        made.append(Nothing())
        return made[-1]

    call = GenerateCall(
        SamplingSpec(n=2, stop=stop), input_ids=[1], logprobs=logprobs, channels=channels
    )
    requests = make_requests(
        call, pack_prompt(call, tokenizer, LIMITS), LIMITS, seed=0, ids=itertools.count()
    )

    for choice in make_choices(call, requests, tokenizer):
        choice.feed(Output(choice.request_id, token_ids=[0x61, 0x62]))
        assert choice.finish is None
        assert choice.take().channels == ([None, None] if split else [])

    assert len(made) == (2 if split else 0)


class Nothing:
    """Channels of a text that nobody is shown."""

    def push(self, text: str) -> list[Run]:
        """Return all of it."""
        return [(None, text, "")]

    def finish(self) -> list[Run]:
        """Return nothing."""
        return []


@pytest.mark.parametrize(
    ("ids", "turn_id", "boundaries"),
    [
        ([0, 5, 6, 9, 7], 9, (4,)),
        ([0, 5, 9, 7, 8, 9, 7, 7, 9, 3], 9, (3, 9)),
        ([9, 9], 9, (1, 2)),
        ([0, 5, 6], 9, ()),
        ([0, 9, 6], None, ()),
    ],
)
def test_prompts_are_likely_to_part_behind_the_marks_of_the_first_and_the_last_turn(
    ids: list[int], turn_id: int | None, boundaries: tuple[int, ...]
) -> None:
    assert turn_boundaries(pack_ids(np.array(ids)), turn_id) == boundaries
    call = GenerateCall(SamplingSpec(n=2), input_ids=ids)
    prompt = pack_prompt(call, NO_TEXT, LIMITS)
    requests = make_requests(call, prompt, LIMITS, seed=0, ids=itertools.count(), turn_id=turn_id)
    assert [request.boundaries for request in requests] == [boundaries] * 2
