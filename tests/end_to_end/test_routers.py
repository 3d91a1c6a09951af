"""Routers of others, as released, in front of two servers with the default model.

Eight chats of four turns at once: the answers are those of one server, and nothing but a cached
prefix decides how much is computed. Each test prints the share of prompt tokens that came from the
caches, beside that of one server.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.end_to_end.client_environments import python_with
from tests.end_to_end.router_processes import (
    DYNAMO,
    ROUTERS,
    running_router,
    running_selector,
)
from tests.testing.server_process import Json, ServerProcess, running_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

NAMES = ["Clara", "Boris", "Mina", "Otto", "Lena", "Igor", "Nora", "Felix"]
CITIES = ["Oslo", "Rome", "Lima", "Cairo", "Paris", "Delhi", "Tokyo", "Quito"]
THINGS = ["book", "cup", "key", "lamp", "coin", "map", "pen", "ring"]
ANYWHERE = "tcp://127.0.0.1:0"
EVENTS = {"publisher": "zmq", "endpoint": ANYWHERE, "replay_endpoint": ANYWHERE}
# Of one server's hits: text is approximate, and events tell of whole pages only.
LEAST_SHARE = 0.8


class Turns(NamedTuple):
    """What became of all chats: answers by chat and turn, and their prompts' tokens."""

    answers: list[list[str]]
    cached: int
    prompt: int

    @property
    def hits(self) -> float:
        """Share of prompt tokens that were cached."""
        return self.cached / self.prompt


def questions(chat: int) -> list[str]:
    """Return what a user says; the first turn is longer than a page."""
    facts = " ".join(
        f"My {THINGS[k % 8]} number {8 * k + chat} is on shelf {k}." for k in range(36)
    )
    return [
        f"My sister {NAMES[chat]} lives in {CITIES[chat]}. {facts}",
        f"What is {chat + 10} + {chat + 7}?",
        f"Where does my sister {NAMES[chat]} live?",
        "What is 12 + 30?",
    ]


def converse(ask: Callable[[Json, str], Json]) -> Turns:
    """Hold eight chats at once. `ask` returns the reply to a body, and is given a unique name."""

    def hold(chat: int) -> list[Json]:
        messages: list[Json] = [{"role": "system", "content": "You are a helpful assistant."}]
        replies: list[Json] = []
        for turn, said in enumerate(questions(chat)):
            messages.append({"role": "user", "content": said})
            body = {"model": "default", "messages": messages, "max_tokens": 24}
            body |= {"temperature": 0, "reasoning_effort": "none"}
            replies.append(ask(body, f"{chat}-{turn}"))
            content = replies[-1]["choices"][0]["message"]["content"]
            messages.append({"role": "assistant", "content": content})
        return replies

    with ThreadPoolExecutor(8) as pool:
        chats = list(pool.map(hold, range(8)))
    usages = [reply["usage"] for replies in chats for reply in replies]
    return Turns(
        [[reply["choices"][0]["message"]["content"] for reply in replies] for replies in chats],
        sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages),
        sum(usage["prompt_tokens"] for usage in usages),
    )


def through(url: str) -> Turns:
    """Hold the chats with whatever answers OpenAI's API at `url`."""
    with httpx.Client(base_url=url, timeout=300.0, trust_env=False) as client:

        def ask(body: Json, name: str) -> Json:
            reply = client.post("/v1/chat/completions", json=body)
            assert reply.status_code == 200, f"{name}: {reply.status_code} {reply.text}"
            return reply.json()

        return converse(ask)


@pytest.fixture(scope="module")
def servers() -> Iterator[list[ServerProcess]]:
    """Two servers that publish what they cache."""
    flags = ("--kv-events-config", json.dumps(EVENTS))
    with running_server(*flags, check=False) as one, running_server(*flags, check=False) as other:
        yield [one, other]


@pytest.fixture(scope="module")
def alone(servers: list[ServerProcess]) -> Turns:
    """The chats with one server."""
    return through(servers[0].url)


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of an environment with a package, made on first use."""
    made: dict[str, Path] = {}

    def folder_of(package: str) -> Path:
        if package not in made:
            folder = tmp_path_factory.mktemp(package.partition("=")[0]) / "venv"
            python_with(folder, package)
            made[package] = folder
        return made[package]

    return folder_of


def judge(
    name: str, found: Turns, alone: Turns, sent: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Hold what came through a router against one server."""
    with capsys.disabled():
        print(f"\n{name}: hits {found.hits:.4f}, alone {alone.hits:.4f}, requests {sent}")
    assert found.answers == alone.answers
    assert found.hits >= LEAST_SHARE * alone.hits
    assert min(sent) > 0, "one server had nothing to do"


def answered(server: ServerProcess) -> int:
    """Return how many requests a server has answered so far."""
    text = server.client.get("/metrics").text
    lines = [line for line in text.splitlines() if line.startswith("sglang:num_requests_total{")]
    return int(sum(float(line.rpartition(" ")[2]) for line in lines))


def flushed(servers: list[ServerProcess]) -> list[int]:
    """Empty all caches; return how many requests each server has answered."""
    for server in servers:
        assert server.client.post("/flush_cache").status_code == 200
    return [answered(server) for server in servers]


@pytest.mark.parametrize("name", ROUTERS)
def test_chats_through_a_router_are_answered_as_by_one_server(
    name: str,
    servers: list[ServerProcess],
    alone: Turns,
    environments: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    kind = ROUTERS[name]
    folder = environments(kind.package)
    with running_router(kind, folder, servers) as url:
        before = flushed(servers)
        found = through(url)
    sent = [answered(server) - count for server, count in zip(servers, before, strict=True)]
    judge(name, found, alone, sent, capsys)


def test_dynamos_selection_service_follows_the_events(
    servers: list[ServerProcess],
    alone: Turns,
    environments: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = environments(DYNAMO)
    flushed(servers)
    with running_selector(folder, servers) as selector:
        found = converse(selector.chat)
    judge("dynamo", found, alone, list(selector.chosen.values()), capsys)
