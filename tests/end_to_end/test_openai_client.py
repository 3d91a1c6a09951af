"""OpenAI's own client against the server: what it parses, streams and counts, and its errors."""

import math
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel

from tests.end_to_end.conftest import KEY
from tests.end_to_end.grammar_cases import NO_BLANKS
from tests.testing.server_process import ServerProcess
from tests.testing.stand_in.tokenizer import EOS_ID

MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
]


@pytest.fixture(scope="module")
def server(keyed_server: ServerProcess) -> ServerProcess:
    """A server that wants a key."""
    return keyed_server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    """The client as a user makes it."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(client: openai.OpenAI) -> str:
    """The first model listed."""
    return client.models.list().data[0].id


def test_chat_answers_and_counts(client: openai.OpenAI, model: str) -> None:
    reply = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=8, temperature=0
    )

    assert reply.object == "chat.completion"
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].finish_reason in ("stop", "length")
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.completion_tokens <= 8


def test_a_stream_spells_the_same_text(client: openai.OpenAI, model: str) -> None:
    whole = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=24, temperature=0
    )

    text, finish, usage = "", None, None
    stream = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        max_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
            finish = chunk.choices[0].finish_reason or finish
        else:
            usage = chunk.usage

    assert text == (whole.choices[0].message.content or "")
    assert finish == whole.choices[0].finish_reason
    assert usage is not None
    assert whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_the_next_turn_reuses_the_last_one(client: openai.OpenAI, model: str) -> None:
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Tell me of lazy dogs. " * 20},
    ]
    first = client.chat.completions.create(
        model=model, messages=messages, max_tokens=4, temperature=0
    )

    again = client.chat.completions.create(
        model=model, messages=messages, max_tokens=4, temperature=0
    )

    assert again.choices[0].message.content == first.choices[0].message.content
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens - 1


def test_chat_logprobs_are_logarithms_of_probabilities(client: openai.OpenAI, model: str) -> None:
    reply = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        max_tokens=5,
        temperature=0,
        logprobs=True,
        top_logprobs=4,
        reasoning_effort="none",
    )

    assert reply.choices[0].logprobs is not None
    content = reply.choices[0].logprobs.content
    assert content
    for entry in content:
        assert len(entry.top_logprobs) == 4
        values = [other.logprob for other in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert entry.logprob == pytest.approx(values[0])
        assert sum(math.exp(value) for value in values) <= 1 + 1e-4


def test_completions_take_text_and_token_ids(client: openai.OpenAI, model: str) -> None:
    by_text = client.completions.create(model=model, prompt="The quick", max_tokens=6, n=2, seed=3)
    by_ids = client.completions.create(
        model=model, prompt=[[5, 6, 7], [9, 10]], max_tokens=3, temperature=0
    )

    assert [choice.index for choice in by_text.choices] == [0, 1]
    assert [choice.index for choice in by_ids.choices] == [0, 1]
    assert by_ids.usage is not None
    assert by_ids.usage.prompt_tokens == 5


def test_completions_stream_and_echo_their_logprobs(client: openai.OpenAI, model: str) -> None:
    reply = client.completions.create(
        model=model, prompt=[11, 12, 13], max_tokens=2, temperature=0, logprobs=2, echo=True
    )
    stream = client.completions.create(
        model=model, prompt=[11, 12, 13], max_tokens=2, temperature=0, stream=True
    )

    text = "".join(chunk.choices[0].text for chunk in stream if chunk.choices)

    assert reply.choices[0].text.endswith(text)
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None
    assert len(logprobs.token_logprobs) >= 4


def test_a_seed_makes_sampling_repeatable(client: openai.OpenAI, model: str) -> None:
    def text(seed: int) -> str:
        reply = client.completions.create(
            model=model, prompt="Once", max_tokens=12, temperature=1.5, seed=seed
        )
        return reply.choices[0].text

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(4)}) > 1


def test_errors_arrive_as_the_clients_own_exceptions(
    client: openai.OpenAI, server: ServerProcess, model: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=model, messages=MESSAGES, temperature=-1)
    assert refused.value.param == "temperature"

    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="no-such-model", messages=MESSAGES)

    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()


class Verdict(BaseModel):
    """What an answer is parsed into."""

    good: bool
    stars: Literal[1, 2, 3]


class Book(BaseModel):
    """What a tool is called with."""

    shelf: Literal["a", "b"]
    lent: bool


LEND = openai.pydantic_function_tool(Book, name="lend")
QUICK: dict[str, Any] = {
    "messages": MESSAGES,
    "max_tokens": 1500,
    "reasoning_effort": "none",
    "logit_bias": NO_BLANKS,
}


def test_an_answer_is_parsed_streamed_and_not(client: openai.OpenAI, model: str) -> None:
    whole = client.chat.completions.parse(model=model, response_format=Verdict, **QUICK)
    with client.chat.completions.stream(
        model=model, response_format=Verdict, stream_options={"include_usage": True}, **QUICK
    ) as stream:
        streamed = stream.get_final_completion()

    assert isinstance(whole.choices[0].message.parsed, Verdict)
    assert isinstance(streamed.choices[0].message.parsed, Verdict)
    assert streamed.usage is not None
    assert streamed.usage.completion_tokens > 0


def test_calls_are_parsed_streamed_and_not(client: openai.OpenAI, model: str) -> None:
    forced: dict[str, Any] = {**QUICK, "tools": [LEND], "tool_choice": "required"}

    whole = client.chat.completions.parse(model=model, parallel_tool_calls=False, **forced)
    with client.chat.completions.stream(model=model, parallel_tool_calls=False, **forced) as stream:
        events = [event.type for event in stream]
        streamed = stream.get_final_completion()

    for reply in (whole, streamed):
        assert reply.choices[0].finish_reason == "tool_calls"
        [call] = reply.choices[0].message.tool_calls or []
        assert isinstance(call.function.parsed_arguments, Book)
    assert events.count("tool_calls.function.arguments.done") == 1


def test_several_streamed_choices_have_their_own_logprobs(
    client: openai.OpenAI, model: str
) -> None:
    chunks = list(
        client.chat.completions.create(
            model=model,
            messages=MESSAGES,
            max_tokens=3,
            n=2,
            logprobs=True,
            top_logprobs=2,
            logit_bias={str(EOS_ID): -100},
            stream=True,
            stream_options={"include_usage": True},
            reasoning_effort="none",
        )
    )

    told = [choice for chunk in chunks for choice in chunk.choices]
    for index in range(2):
        mine = [choice for choice in told if choice.index == index]
        entries = [e for choice in mine if choice.logprobs for e in choice.logprobs.content or ()]
        assert [len(entry.top_logprobs) for entry in entries] == [2, 2, 2]
        assert mine[-1].finish_reason == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6


def test_an_answer_goes_on_and_salts_keep_caches_apart(client: openai.OpenAI, model: str) -> None:
    begun: list[ChatCompletionMessageParam] = [*MESSAGES, {"role": "assistant", "content": "It is"}]

    def ask(salt: str) -> int:
        extra = {"continue_final_message": True, "cache_salt": salt, "priority": 3}
        usage = client.chat.completions.create(
            model=model,
            messages=begun,
            max_tokens=1,
            reasoning_effort="none",
            extra_body={**extra, "chat_template_kwargs": {"thinking": False}},
        ).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        return usage.prompt_tokens_details.cached_tokens or 0

    assert ask("one") == 0
    assert ask("one") > 0
    assert ask("two") == 0


def test_completions_of_several_prompts_are_streamed(client: openai.OpenAI, model: str) -> None:
    texts = dict.fromkeys(range(4), "")
    for chunk in client.completions.create(
        model=model, prompt=[[65, 66], [67]], n=2, max_tokens=2, echo=True, stream=True
    ):
        texts[chunk.choices[0].index] += chunk.choices[0].text

    prompts = client.completions.create(
        model=model, prompt=[[65, 66], [67]], max_tokens=0, echo=True
    ).choices
    for index, text in texts.items():
        assert text.startswith(prompts[index // 2].text)
    with pytest.raises(openai.BadRequestError, match="no filling in") as refused:
        client.completions.create(model=model, prompt="a", suffix="b")
    assert refused.value.param == "suffix"
