"""Routers of others in front of our servers: how each is installed, started and told of them."""

import contextlib
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.testing.server_process import Json, ServerProcess, reserved_port

READY_S, LOG_CHARS = 120.0, 4000


@dataclass(frozen=True, slots=True)
class RouterKind:
    """A router that answers OpenAI's API itself.

    package  what pip installs
    command  returns its command line for the environment's bin folder, its port, one for its
             metrics, and the servers
    """

    package: str
    command: Callable[[Path, int, int, Sequence[ServerProcess]], list[str]]


def _flags(port: int, metrics_port: int, servers: Sequence[ServerProcess]) -> list[str]:
    urls = [server.url for server in servers]
    own = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics_port)]
    return [*own, "--worker-urls", *urls]


def _smg(folder: Path, port: int, metrics: int, servers: Sequence[ServerProcess]) -> list[str]:
    return [
        str(folder / "smg"),
        "launch",
        *_flags(port, metrics, servers),
        "--policy",
        "cache_aware",
    ]


def _sglang(folder: Path, port: int, metrics: int, servers: Sequence[ServerProcess]) -> list[str]:
    module = [str(folder / "python"), "-m", "sglang_router.launch_router"]
    return [*module, *_flags(port, metrics, servers), "--policy", "cache_aware"]


def _vllm_text(
    folder: Path, port: int, metrics: int, servers: Sequence[ServerProcess]
) -> list[str]:
    flags = _flags(port, metrics, servers)
    return [str(folder / "vllm-router"), *flags, "--policy", "cache_aware"]


def _vllm_events(
    folder: Path, port: int, metrics: int, servers: Sequence[ServerProcess]
) -> list[str]:
    command = [str(folder / "vllm-router"), *_flags(port, metrics, servers)]
    command += ["--policy", "kv_aware", "--kv-event-block-size", "256"]
    command += ["--kv-event-model", servers[0].model()]
    for server in servers:
        source = server.get("/kv_event_sources")["0"]
        command += ["--kv-event-source", f"{server.url}={source['endpoint']}"]
        command += ["--kv-event-replay-source", f"{server.url}={source['replay_endpoint']}"]
    return command


ROUTERS = {
    "smg": RouterKind("smg==1.13.0", _smg),
    "sglang-router": RouterKind("sglang-router==0.3.2", _sglang),
    "vllm-router": RouterKind("vllm-router==0.1.17", _vllm_text),
    "vllm-router, events": RouterKind("vllm-router==0.1.17", _vllm_events),
}
DYNAMO = "ai-dynamo-runtime==1.6.1"


@contextlib.contextmanager
def running_router(
    kind: RouterKind, folder: Path, servers: Sequence[ServerProcess]
) -> Generator[str]:
    """Start a router of the environment in `folder`; yield its address once it routes."""
    with reserved_port() as port, reserved_port() as metrics:
        command = kind.command(folder / "bin", port, metrics, servers)
        with _running(command, folder / "router.log") as log:
            url = f"http://127.0.0.1:{port}"
            body = {"model": "default", "prompt": "Hello", "max_tokens": 1}
            _until_answered(lambda: httpx.post(f"{url}/v1/completions", json=body, timeout=30), log)
            yield url


class DynamoSelector:
    """Dynamo's SelectionService: it says which server gets a prompt, and the client sends it there.

    chosen  how often each server was
    """

    def __init__(self, url: str, servers: Sequence[ServerProcess]) -> None:
        self._client = httpx.Client(base_url=url, timeout=60.0, trust_env=False)
        self._model = servers[0].model()
        self.chosen = dict.fromkeys((server.url for server in servers), 0)
        for number, server in enumerate(servers, 1):
            source = server.get("/kv_event_sources")["0"]
            worker = {
                "worker_id": number,
                "model_name": self._model,
                "endpoint": server.url,
                "block_size": 256,
                "max_num_batched_tokens": 8192,
                "data_parallel_size": 1,
                "kv_events_endpoints": {"0": source["endpoint"]},
                "replay_endpoint": source["replay_endpoint"],
            }
            self._client.post("/workers", json=worker).raise_for_status()

    def chat(self, body: Json, name: str) -> Json:
        """Have a chat answered by the server that is selected for its token ids.

        name  of the request, another one for each
        """
        any_server = next(iter(self.chosen))
        rendered = httpx.post(f"{any_server}/v1/chat/completions/render", json=body, timeout=300.0)
        asked = {"selection_id": name, "model_name": self._model}
        selection = self._client.post(
            "/select_and_reserve", json={**asked, "token_ids": rendered.json()["token_ids"]}
        ).json()
        self.chosen[selection["endpoint"]] += 1
        reply = httpx.post(f"{selection['endpoint']}/v1/chat/completions", json=body, timeout=300.0)
        self._client.post(f"/reservations/{name}/prefill_complete").raise_for_status()
        self._client.delete(f"/reservations/{name}").raise_for_status()
        return reply.raise_for_status().json()

    def close(self) -> None:
        """Hang up."""
        self._client.close()


@contextlib.contextmanager
def running_selector(folder: Path, servers: Sequence[ServerProcess]) -> Generator[DynamoSelector]:
    """Start Dynamo's SelectionService of the environment in `folder`, and register the servers."""
    with reserved_port() as port:
        command = [str(folder / "bin" / "python"), "-m", "dynamo.select_service"]
        command += ["--port", str(port), "--threads", "1"]
        with _running(command, folder / "router.log") as log:
            url = f"http://127.0.0.1:{port}"
            _until_answered(lambda: httpx.get(f"{url}/workers", timeout=30), log)
            with contextlib.closing(DynamoSelector(url, servers)) as selector:
                yield selector


@contextlib.contextmanager
def _running(command: list[str], log: Path) -> Generator[Path]:
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            yield log
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _until_answered(ask: Callable[[], httpx.Response], log: Path) -> None:
    """Ask until the reply is a success; fail with the router's log at the deadline."""
    deadline, last = time.monotonic() + READY_S, Any
    while time.monotonic() < deadline:
        try:
            last = ask()
            if last.status_code == 200:
                return
        except httpx.TransportError as fault:
            last = fault
        time.sleep(0.3)
    told = log.read_text(errors="replace")[-LOG_CHARS:]
    raise AssertionError(f"the router was not ready after {READY_S:g} s: {last}\n{told}")
