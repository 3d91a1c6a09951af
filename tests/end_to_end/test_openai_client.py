"""OpenAI's own client against the server: chat, completions, streams, log-probabilities, errors."""

import math
from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.testing.server_process import ServerProcess, running_server

MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server that wants a key."""
    flags = ("--api-key", "secret", "--full-pages", "64", "--random-seed", "0")
    with running_server(*flags) as server:
        server.client.headers["Authorization"] = "Bearer secret"
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    """The client as a user makes it."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0) as client:
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
        model=model, messages=MESSAGES, max_tokens=5, temperature=0, logprobs=True, top_logprobs=4
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
