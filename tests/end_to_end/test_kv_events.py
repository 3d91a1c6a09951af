"""A router's view of a real server: what its events say is cached is what requests then reuse."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import zmq

from tests.end_to_end.tiny_model import tiny_model_flags
from tests.testing.server_process import ServerProcess, running_server

PAGE = 256
ANYWHERE = "tcp://127.0.0.1:0"
CONFIG = {"publisher": "zmq", "endpoint": ANYWHERE, "replay_endpoint": ANYWHERE, "topic": "kv"}
# Room for three of the prompts below, so that they push each other out.
FLAGS = ("--full-pages", "12", "--swa-pages", "60", "--rings", "20")
END = b"\xff" * 8


class Router:
    """Knows of the server what its events tell, and nothing else.

    blocks   hash -> tokens up to its end, of all blocks stored now
    removed  blocks that went, so far
    cleared  times that all went
    """

    def __init__(self, server: ServerProcess) -> None:
        self.blocks: dict[int, tuple[int, ...]] = {}
        self.removed = self.cleared = 0
        self._next = 0
        self._context: zmq.Context[Any] = zmq.Context()
        source = server.get("/kv_event_sources")["0"]
        self._replay = self._socket(zmq.DEALER, source["replay_endpoint"])
        self.live = self._socket(zmq.SUB, source["endpoint"])
        self.live.setsockopt_string(zmq.SUBSCRIBE, source["topic"])

    def _socket(self, kind: int, endpoint: str) -> "zmq.Socket[Any]":
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.RCVTIMEO, 60_000)
        socket.connect(endpoint)
        return socket

    def close(self) -> None:
        """Hang up."""
        self._replay.close(linger=0)
        self.live.close(linger=0)
        self._context.term()

    def ask(self, start: int) -> list[tuple[int, bytes]]:
        """Return all batches from a number on, as (number, payload)."""
        self._replay.send_multipart([b"", start.to_bytes(8, "big")])
        batches: list[tuple[int, bytes]] = []
        while True:
            empty, topic, number, payload = self._replay.recv_multipart()
            assert empty == b""
            if number == END:
                return batches
            assert topic == b"kv"
            batches.append((int.from_bytes(number, "big"), payload))

    def listen(self) -> None:
        """Learn what happened since the last time."""
        for number, payload in self.ask(self._next):
            assert number == self._next
            self._next += 1
            time_s, events, rank = msgspec.msgpack.decode(payload)
            assert time_s > 0
            assert rank == 0
            for event in events:
                self._learn(event)

    def _learn(self, event: dict[str, Any]) -> None:
        if event["type"] == "AllBlocksCleared":
            self.cleared += 1
            self.blocks.clear()
            return
        assert (event["medium"], event["group_idx"]) == ("GPU", 0)
        if event["type"] == "BlockRemoved":
            self.removed += len(event["block_hashes"])
            for block in event["block_hashes"]:
                del self.blocks[block]
            return
        assert (event["type"], event["block_size"]) == ("BlockStored", PAGE)
        tokens, parent = event["token_ids"], event["parent_block_hash"]
        assert len(tokens) == PAGE * len(event["block_hashes"])
        path = () if parent is None else self.blocks[parent]
        for k, block in enumerate(event["block_hashes"]):
            path = (*path, *tokens[k * PAGE : (k + 1) * PAGE])
            assert block not in self.blocks
            self.blocks[block] = path

    def count(self, prompt: list[int]) -> int:
        """Return how many whole pages of a prompt are stored, from its beginning on."""
        known = set(self.blocks.values())
        pages = 0
        while tuple(prompt[: (pages + 1) * PAGE]) in known and (pages + 1) * PAGE <= len(prompt):
            pages += 1
        return pages


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with events on."""
    model = tiny_model_flags(tmp_path_factory.mktemp("model"))
    with running_server(*model, *FLAGS, "--kv-events-config", json.dumps(CONFIG)) as server:
        yield server


@contextmanager
def watching(server: ServerProcess) -> Iterator[Router]:
    """Follow an empty server's events."""
    assert server.client.post("/flush_cache").status_code == 200
    router = Router(server)
    try:
        router.listen()
        assert router.blocks == {}
        yield router
    finally:
        router.close()


def words(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(10, 250) for _ in range(count)]


def generate(server: ServerProcess, prompt: list[int], **extra: Any) -> tuple[list[int], int]:
    """Return the answer's tokens and how much of the prompt came from the cache."""
    reply = server.generate(prompt, extra, max_new_tokens=4, ignore_eos=True)
    return reply["output_ids"], reply["meta_info"]["cached_tokens"]


def test_the_next_turn_reuses_exactly_the_pages_announced(server: ServerProcess) -> None:
    first = words(random.Random(1), 700)
    with watching(server) as router:
        answer, cached = generate(server, first)
        router.listen()
        assert (cached, router.count(first), len(router.blocks)) == (0, 2, 2)

        second = first + answer + words(random.Random(2), 400)
        _, cached = generate(server, second)
        assert cached // PAGE == 2
        router.listen()
        assert (router.count(second), len(router.blocks)) == (4, 4)

        assert server.client.post("/flush_cache").status_code == 200
        before = router.cleared
        router.listen()
        assert (router.cleared, router.blocks) == (before + 1, {})
        assert generate(server, second)[1] == 0


def test_under_eviction_no_request_reuses_more_or_less_than_was_announced(
    server: ServerProcess,
) -> None:
    replay = server.get("/server_info")["replay_tokens"]
    draw = random.Random(3)
    prompts = [words(draw, length) for length in (300, 900, 1100)]
    reused = 0
    with watching(server) as router:
        for _ in range(40):
            base = draw.choice(prompts)
            prompt = base[: draw.randint(1, len(base))] + words(draw, draw.choice([1, 60, 300]))
            if draw.random() < 0.3:
                prompts[draw.randrange(len(prompts))] = prompt[:1200]
            announced = router.count(prompt)

            _, cached = generate(server, prompt)

            assert cached < (announced + 1) * PAGE
            assert cached >= min(announced * PAGE, len(prompt) - 1) - replay
            reused += cached
            router.listen()
            assert router.count(prompt) == len(prompt) // PAGE
        assert reused > 0
        assert router.removed > 10


def test_another_salt_has_blocks_of_its_own(server: ServerProcess) -> None:
    prompt = words(random.Random(4), 600)
    with watching(server) as router:
        for salt in ("one", "two"):
            known = set(router.blocks)
            assert generate(server, prompt, cache_salt=salt)[1] == 0
            router.listen()
            assert len(set(router.blocks) - known) == 2
        assert len(set(router.blocks.values())) == 2


def test_a_subscriber_gets_what_a_replay_gives(server: ServerProcess) -> None:
    draw = random.Random(5)
    with watching(server) as router:
        while not router.live.poll(0):
            generate(server, words(draw, PAGE))
        generate(server, words(draw, PAGE))
        past = router.ask(0)

        lived: list[tuple[int, bytes]] = []
        while not lived or lived[-1][0] < past[-1][0]:
            topic, number, payload = router.live.recv_multipart()
            assert topic == b"kv"
            lived.append((int.from_bytes(number, "big"), payload))
        assert len(lived) >= 2
        assert lived == past[-len(lived) :]


def test_routers_find_the_publisher(server: ServerProcess) -> None:
    info, source = server.get("/server_info"), server.get("/kv_event_sources")["0"]

    found = info["kv_events"]
    assert (found["block_size"], found["topic"]) == (PAGE, "kv")
    endpoint = f"tcp://{found['endpoint_host']}:{found['endpoint_port_base']}"
    assert source["endpoint"] == endpoint
    assert found["endpoint_port_base"] > 0


@pytest.mark.slow
def test_a_port_in_use_ends_the_start_with_a_reason(
    server: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    taken = server.get("/kv_event_sources")["0"]["endpoint"]
    model = tiny_model_flags(tmp_path_factory.mktemp("model"))
    config = json.dumps({"publisher": "zmq", "endpoint": taken})

    with (
        pytest.raises(AssertionError, match=f"exited with 2 .*(?s:.*)cannot listen on {taken}"),
        running_server(*model, "--kv-events-config", config),
    ):
        pass
