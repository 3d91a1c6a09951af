"""The model that comes along, through the real server: it answers, and what it says makes sense."""

import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from runtime.chat.v4_encoder import V4Encoder
from runtime.default_model.folder import CHECKPOINT
from runtime.lang.endpoint import Endpoint
from runtime.lang.program import function
from runtime.lang.state import State
from runtime.lang.words import assistant as assistant_turn
from runtime.lang.words import gen
from runtime.lang.words import system as system_turn
from runtime.lang.words import user as user_turn
from tests.testing.server_process import Json, ServerProcess

TALK: Json = {"reasoning_effort": "none", "max_tokens": 64}
WEATHER: Json = {
    "name": "get_weather",
    "description": "Get the weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
PERSON: Json = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
STATED = "Lena lives in Oslo and works as a pilot. The lamp is in the cellar."
TALKED = (
    (STATED, "I will remember that."),
    ("What is 17 + 5?", "17 + 5 = 22"),
    ("Where does Lena live?", "Lena lives in Oslo."),
    ("And what is her job?", "Lena works as a pilot."),
    ("Where is the lamp?", "The lamp is in the cellar."),
    ("Correction: Lena lives in Rome.", "Thank you, I have changed that."),
    ("Where does Lena live?", "Lena lives in Rome."),
)


@pytest.fixture(scope="module")
def server(default_server: ServerProcess) -> ServerProcess:
    """What `python launch_server.py` serves."""
    return default_server


def ask(server: ServerProcess, messages: list[Json], **fields: Any) -> Json:
    """Return the reply to a chat that says nothing of temperature."""
    response = server.post("/v1/chat/completions", {"messages": messages, **TALK, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def converse(server: ServerProcess) -> tuple[list[str], list[int]]:
    """Hold the conversation; return the answers, and the cached tokens of each turn."""
    messages: list[Json] = []
    cached: list[int] = []
    for said, _ in TALKED:
        messages.append(user(said))
        reply = ask(server, messages)
        assert reply["choices"][0]["finish_reason"] == "stop"
        cached.append(reply["usage"]["prompt_tokens_details"]["cached_tokens"])
        messages.append(reply["choices"][0]["message"])
    return [message["content"] for message in messages[1::2]], cached


def test_it_is_what_is_served_where_nothing_is_said(server: ServerProcess) -> None:
    info = server.get("/model_info")

    assert info["model_path"] == str(CHECKPOINT)
    assert server.model() == info["served_model_name"] == "default"
    assert info["sampling_defaults"] == {"temperature": 0.0}


def test_it_remembers_facts_and_corrections_cold_and_from_the_cache(server: ServerProcess) -> None:
    assert server.post("/flush_cache", {}).status_code == 200
    cold, cached = converse(server)
    warm, again = converse(server)

    assert cold == warm == [answer for _, answer in TALKED]
    assert cached[0] == 0
    assert all(more >= less for more, less in zip(again, cached, strict=True))
    assert all(again)


def test_it_finds_a_fact_behind_thousands_of_tokens(server: ServerProcess) -> None:
    filler = "The wind came from the sea, and the road went over the hill to the old mill. "
    messages = [
        user(STATED),
        {"role": "assistant", "content": "I will remember that."},
        user("Please read this: " + filler * 150),
        {"role": "assistant", "content": "I have read it."},
        user("Where is the lamp?"),
    ]

    reply = ask(server, messages)

    assert reply["usage"]["prompt_tokens"] > 2500
    assert reply["choices"][0]["message"]["content"] == "The lamp is in the cellar."


def test_it_calls_a_tool_and_answers_with_its_result(server: ServerProcess) -> None:
    tools: list[Json] = [{"type": "function", "function": WEATHER}]
    messages = [user("What is the weather in Oslo?")]

    called = ask(server, messages, tools=tools)["choices"][0]
    (call,) = called["message"]["tool_calls"]
    messages += [called["message"], {"role": "tool", "tool_call_id": call["id"]}]
    messages[-1]["content"] = '{"sky": "rainy"}'
    answer = ask(server, messages, tools=tools)["choices"][0]

    assert called["finish_reason"] == "tool_calls"
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
    assert (answer["finish_reason"], answer["message"]["content"]) == (
        "stop",
        "It is rainy in Oslo.",
    )


def test_it_answers_as_json_without_a_grammar(server: ServerProcess) -> None:
    """The prompt is that of a chat with a schema; nothing but the model keeps to it."""
    text = "Anna is 31 years old, lives in Rome and works as a baker."
    encoder = V4Encoder(Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json")))
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    chat = {"messages": [user(text)], "response_format": form, "thinking": {"type": "disabled"}}

    by_schema = server.generate(encoder.encode(chat).token_ids, max_new_tokens=64)
    in_words = ask(server, [user(f"{text} Answer as JSON with the keys name and age.")])

    assert by_schema["meta_info"]["finish_reason"]["type"] == "stop"
    for said in (by_schema["text"], in_words["choices"][0]["message"]["content"]):
        assert json.loads(said) == {"name": "Anna", "age": 31}


def test_it_thinks_and_then_answers(server: ServerProcess) -> None:
    reply = ask(server, [user("Tom lives in Rome. Where does Tom live?")], reasoning_effort=None)

    message = reply["choices"][0]["message"]
    assert message["reasoning_content"]
    assert message["content"] == "Tom lives in Rome."


def test_stop_strings_and_log_probabilities_are_of_what_is_shown(server: ServerProcess) -> None:
    tools: list[Json] = [{"type": "function", "function": WEATHER}]
    call = ask(server, [user("What is the weather in Oslo?")], tools=tools, stop=["\n\n", "get"])[
        "choices"
    ][0]
    asked: Json = {"reasoning_effort": None, "logprobs": True, "max_tokens": 200}
    whole = ask(server, [user("Hello")], **asked)["choices"][0]
    message = whole["message"]
    thought = next(
        word for word in message["reasoning_content"].split() if word not in message["content"]
    )
    stopped = ask(server, [user("Hello")], **asked, stop=[thought])["choices"][0]

    assert call["finish_reason"] == "tool_calls"
    assert call["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert stopped == whole
    for field in ("content", "reasoning_content"):
        entries = whole["logprobs"][field]
        assert bytes(byte for e in entries for byte in e["bytes"]).decode() == message[field]


@pytest.mark.parametrize(
    "said", ["Hello", "Tell me a story.", "What is 3 * 4?", "Who are you?", "Count: fox, hen, owl"]
)
def test_it_stops_by_itself(server: ServerProcess, said: str) -> None:
    reply = ask(server, [user(said)], max_tokens=200)

    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["choices"][0]["message"]["content"]


@pytest.mark.parametrize("rules", [pytest.param(15, marks=pytest.mark.slow), 40])
def test_chats_with_one_system_prompt_share_it_from_the_second_on(
    server: ServerProcess, rules: int
) -> None:
    said = " ".join(f"Rule {k} of {rules} is to answer briefly." for k in range(rules))
    system = {"role": "system", "content": said}
    questions = ["What is 12 + 30?", "Where is Oslo?", "Name a colour."]
    history = [system, user(STATED * 5), {"role": "assistant", "content": TALKED[0][1]}]
    cold = [
        ask(server, [system, user(q)], cache_salt=f"{rules}-{k}") for k, q in enumerate(questions)
    ]

    warm = [ask(server, [system, user(q)], cache_salt=f"{rules}") for q in questions]
    longer = [ask(server, [*history, user(q)], cache_salt=f"{rules}") for q in questions]

    assert [r["choices"] for r in warm] == [r["choices"] for r in cold]
    prompts = [r["usage"]["prompt_tokens"] for r in warm]
    cached = [r["usage"]["prompt_tokens_details"]["cached_tokens"] for r in warm + longer]
    assert cached[0] == 0
    assert all(p - 12 <= c < p for p, c in zip(prompts[1:], cached[1:3], strict=True))
    # Behind the history the second chat resumes there as well, without a word more of it.
    assert cached[1] <= cached[3] < cached[4] == cached[5]


def test_programs_with_one_system_prompt_share_it_from_the_second_on(
    server: ServerProcess,
) -> None:
    @function
    def answer(s: State, question: str) -> None:
        s += system_turn("Answer in one word, as briefly as you can. " * 20)
        s += user_turn(question)
        s += assistant_turn(gen("answer", max_tokens=4))

    with Endpoint(server.url) as endpoint:
        states = [answer.run(q, backend=endpoint) for q in ("Oslo?", "A colour?", "A pear?")]

    infos = [state.get_meta_info("answer") for state in states]
    assert infos[0]["cached_tokens"] == 0
    assert all(m["prompt_tokens"] - m["cached_tokens"] < 16 for m in infos[1:])
