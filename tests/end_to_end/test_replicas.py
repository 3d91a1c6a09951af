"""Two replicas on Ray Serve, through their one address: `python -m runtime.replicas`."""

import importlib.util
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.testing.processes import wait_gone
from tests.testing.server_process import Json, ServerProcess, running_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra `ray`"),
]

PLACES = ("Oslo", "Paris", "Rome", "Lima", "Cairo", "Delhi", "Tokyo", "Quito")
WORDS = ("the", "house", "river", "stone", "green", "walks", "over", "cold")
BACK_S = 30.0
Chat = list[tuple[int, int, str]]


@pytest.fixture(scope="module")
def front() -> Iterator[ServerProcess]:
    """The address of two replicas of the default model."""
    launcher = ("-m", "runtime.replicas")
    flags = ("--replicas", "2", "--full-pages", "200", "--check-every-step")
    with running_server(*flags, launcher=launcher, check=False, exit_code=0) as server:
        wait_until(lambda: len(known(server)) == 2 and all(v["current"] for v in views(server)))
        yield server
        started = server.children()
    wait_gone(started, BACK_S)


def known(front: ServerProcess) -> dict[str, Json]:
    """Return what the front knows of each replica, by name."""
    return front.get("/replicas")["replicas"]


def views(front: ServerProcess) -> list[Json]:
    return list(known(front).values())


def wait_until(condition: Any, limit_s: float = BACK_S) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.2)
    raise AssertionError(f"not after {limit_s:g} s")


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def server_pids(front: ServerProcess) -> list[int]:
    """Return the ids of the replicas' servers, not of the schedulers below them."""
    return [pid for pid in front.children() if "runtime.replicas.server_child" in command_of(pid)]


def chat(url: str, number: int, filler: int, **fields: Any) -> Chat:
    """Hold a conversation of four turns; return (cached, prompt, answer) of each."""
    draw = random.Random(number)
    words = " ".join(draw.choice(WORDS) for _ in range(filler))
    turns = (
        f"My sister lives in {PLACES[number]}. {words}",
        f"What is {number + 10} + 30?",
        "Where does my sister live?",
        "What is the capital of France?",
    )
    messages: list[Json] = []
    told: Chat = []
    with httpx.Client(base_url=url, timeout=240.0, trust_env=False) as client:
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            body = {"messages": messages, "max_tokens": 48, "temperature": 0, **fields}
            reply = client.post("/v1/chat/completions", json={"reasoning_effort": "none", **body})
            assert reply.status_code == 200, reply.text
            message, usage = reply.json()["choices"][0]["message"], reply.json()["usage"]
            messages.append({"role": "assistant", "content": message["content"]})
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            told.append((cached, usage["prompt_tokens"], message["content"]))
    return told


def eight_chats(server: ServerProcess, filler: int, **fields: Any) -> list[Chat]:
    assert server.client.post("/flush_cache").status_code == 200
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda k: chat(server.url, k, filler, **fields), range(8)))


def hits(chats: list[Chat]) -> int:
    return sum(cached for one in chats for cached, _, _ in one)


def answers(chats: list[Chat]) -> list[list[str]]:
    return [[answer for _, _, answer in one] for one in chats]


def test_chats_at_once_hit_as_on_one_server_and_are_answered_alike(front: ServerProcess) -> None:
    with running_server("--full-pages", "200") as one:
        for filler in (0, 300):
            alone, together = eight_chats(one, filler), eight_chats(front, filler)

            assert hits(together) >= 0.97 * hits(alone)
            assert answers(together) == answers(alone)
    assert all(view["served"] >= 8 for view in views(front))


def test_salted_chats_hit_their_own_prefixes_alone(front: ServerProcess) -> None:
    plain = eight_chats(front, 300)

    salted = chat(front.url, 0, 300, cache_salt="one")
    again = chat(front.url, 0, 300, cache_salt="one")

    assert salted[0][0] == 0
    assert answers([salted, again]) == [answers(plain)[0]] * 2
    assert again[0][0] > 0
    assert [one[0] for one in salted[1:]] == [one[0] for one in plain[0][1:]]


def test_a_client_that_leaves_ends_its_request(front: ServerProcess) -> None:
    stream = front.stream("Count: 1 2 3", max_new_tokens=4000, ignore_eos=True)
    next(stream)
    assert running(front) == 1
    stream.close()  # pyright: ignore[reportAttributeAccessIssue]

    wait_until(lambda: running(front) == 0)
    wait_until(lambda: not any(view["requests"] for view in views(front)))


def running(front: ServerProcess) -> int:
    return sum(load["num_running_reqs"] for load in front.get("/v1/loads")["loads"])


def test_a_stored_response_is_continued_where_it_is_kept(front: ServerProcess) -> None:
    body: Json = {"model": "default", "temperature": 0, "max_output_tokens": 32}
    body["reasoning"] = {"effort": "none"}
    for place in PLACES[:3]:
        text = f"My sister lives in {place}."
        first = front.post("/v1/responses", {**body, "input": text, "store": True}).json()

        asked = {"input": "Where does my sister live?", "previous_response_id": first["id"]}
        second = front.post("/v1/responses", {**body, **asked})

        assert second.status_code == 200, second.text
        assert place in second.json()["output"][-1]["content"][0]["text"]
        assert front.get(f"/v1/responses/{first['id']}")["id"] == first["id"]
    assert front.client.get("/v1/responses/resp_none").status_code == 404


def test_metrics_and_pages_show_all_replicas(front: ServerProcess) -> None:
    names = set(known(front))
    text = front.client.get("/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(text)}

    served = {s.labels["replica"]: s.value for s in families["umbra_front_served"].samples}
    assert served == {name: view["served"] for name, view in known(front).items()}
    of_servers = [f for name, f in families.items() if not name.startswith("umbra_front")]
    assert of_servers
    assert all({s.labels["replica"] for s in f.samples} <= names for f in of_servers)
    page = front.client.get("/").text
    assert all(f'"replicas/{name}/"' in page for name in names)
    for name in names:
        assert front.client.get(f"/replicas/{name}/").status_code == 200
        assert "pools" in front.get(f"/replicas/{name}/cache")


def under_load(front: ServerProcess, pool: ThreadPoolExecutor, count: int) -> list[Future[int]]:
    """Send generations of some seconds each; return the statuses that they will have."""

    def one(number: int) -> int:
        body: Json = {"input_ids": [10 + number] * 40}
        body["sampling_params"] = {"max_new_tokens": 100, "ignore_eos": True, "temperature": 0}
        return httpx.post(f"{front.url}/generate", json=body, timeout=240.0).status_code

    return [pool.submit(one, number) for number in range(count)]


def test_a_killed_replica_disturbs_no_other_and_comes_back(front: ServerProcess) -> None:
    before = set(known(front))
    with ThreadPoolExecutor(8) as pool:
        asked = under_load(front, pool, 8)
        wait_until(lambda: running(front) == 8)
        os.kill(server_pids(front)[0], signal.SIGKILL)
        killed_s = time.monotonic()
        statuses = [future.result() for future in asked]

    assert set(statuses) <= {200, 503}
    assert statuses.count(200) >= 4
    wait_until(lambda: len(set(known(front)) - before) == 1 and len(known(front)) == 2)
    [new] = set(known(front)) - before
    with ThreadPoolExecutor(8) as pool:
        assert {f.result() for f in under_load(front, pool, 8)} == {200}
    assert known(front)[new]["served"] > 0
    assert time.monotonic() - killed_s < BACK_S
    wait_until(lambda: known(front)[new]["current"])


def test_a_rolling_upgrade_loses_no_request(front: ServerProcess) -> None:
    before = set(known(front))
    statuses: list[int] = []
    with ThreadPoolExecutor(4) as pool:
        front.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 240
        while set(known(front)) & before or len(known(front)) < 2:
            assert time.monotonic() < deadline
            statuses += [future.result() for future in under_load(front, pool, 4)]

    assert set(statuses) == {200}
    assert len(statuses) >= 8


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_each_replica_has_a_server_of_its_own(front: ServerProcess) -> None:
    assert len(server_pids(front)) >= 2
