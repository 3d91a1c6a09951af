"""A real pretrained model from a GGUF file: chats are those of transformers, cold and cached."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.testing.gqa_checkpoints import assert_greedy
from tests.testing.server_process import ServerProcess, running_server
from tests.testing.smollm2_reference import smollm2_file, smollm2_reference

Chat = list[dict[str, Any]]
NEW = 48

CHATS = [
    ["What is the capital of Italy?", "And of Spain?", "Which of the two has more people?"],
    ["Write a haiku about the sea.", "Now one about mountains.", "Translate the first to French."],
    ["What is 2+2?", "And times three?", "Explain why, as if to a child.", "Thank you!"],
    ["List five animals.", "Sort them by size.", "Which of them can fly?"],
    ["Who wrote Hamlet?", "Name two other plays of the same author."],
    ["def fib(n):\n    ", "Explain the code."],
    ["Summarise: " + "The quick brown fox jumps over the lazy dog. " * 40, "In one word?"],
    ["Wie heißt die Hauptstadt von Österreich? 日本語も。", "1234567890 + 1?"],
]
SUBJECTS = (
    *("the moon", "bees", "bread", "the Roman Empire", "prime numbers", "rain", "chess"),
    *("volcanoes", "the human heart", "trains", "coffee", "a lighthouse", "gravity", "maps"),
)
# With those above, fifty.
CHATS.extend(
    [question.format(subject), then, last]
    for subject in SUBJECTS
    for question, then, last in (
        ("Tell me about {}.", "Say that in one sentence.", "Now as a question."),
        ("Write a short story about {}.", "Give it a title.", "How does it go on?"),
        ("Name three facts about {}.", "Which is the most surprising?", "Thank you. Bye!"),
    )
)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server of the model, by its name."""
    smollm2_file()
    flags = ("--model-path", "smollm2", "--max-total-tokens", "16384", "--device", "cpu")
    with running_server(*flags) as running:
        yield running


def prompt_of(server: ServerProcess, chat: Chat) -> list[int]:
    """Return the token ids that a chat is rendered to."""
    response = server.post("/tokenize", {"model": server.model(), "messages": chat})
    assert response.status_code == 200, response.text
    return response.json()["tokens"]


def test_it_knows_the_capital_of_france(server: ServerProcess) -> None:
    reply = server.generate("The capital of France is", max_new_tokens=4)

    assert reply["text"].startswith(" Paris")


def test_its_template_shows_no_tools(server: ServerProcess) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    chat = {"messages": [{"role": "user", "content": "hi"}], "tools": [tool]}

    response = server.post("/v1/chat/completions", chat)

    assert response.status_code == 400
    assert "no tools" in response.json()["error"]["message"]


def test_a_chat_goes_on_from_the_cache(server: ServerProcess) -> None:
    question = "What is the capital of Italy? Answer in one sentence."
    chat: Chat = [{"role": "user", "content": question}]

    first = server.chat(chat, max_tokens=32)
    answer = first["choices"][0]["message"]["content"]
    chat += [
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "And of Spain?"},
    ]
    second = server.chat(chat, max_tokens=32)

    assert "Rome" in answer
    assert "Madrid" in second["choices"][0]["message"]["content"]
    # All of the first turn but its last token, the end of the answer.
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == first["usage"]["total_tokens"] - 1
    assert server.get("/server_info")["served_model_name"] == "smollm2"


@pytest.fixture(scope="module")
def model() -> Any:
    """What transformers makes of the file, in float32."""
    return smollm2_reference(smollm2_file())


@pytest.mark.slow
@pytest.mark.parametrize("number", range(50))
def test_chats_are_those_of_transformers_cold_cached_and_continued(
    number: int, server: ServerProcess, model: Any
) -> None:
    chat: Chat = []
    prompt: list[int] = []
    continued: dict[str, Any] = {}
    server.post("/flush_cache", {})
    for turn in CHATS[number]:
        chat.append({"role": "user", "content": turn})
        prompt = prompt_of(server, chat)
        continued = server.generate(prompt, max_new_tokens=NEW)
        assert_greedy(model, prompt, continued["output_ids"])
        again = server.generate(prompt, max_new_tokens=NEW)
        assert again["output_ids"] == continued["output_ids"]
        assert again["meta_info"]["cached_tokens"] == len(prompt) - 1
        chat.append({"role": "assistant", "content": continued["text"]})
    server.post("/flush_cache", {})
    cold = server.generate(prompt, max_new_tokens=NEW)
    assert (cold["meta_info"]["cached_tokens"], cold["output_ids"]) == (
        0,
        continued["output_ids"],
    )
