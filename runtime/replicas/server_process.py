"""The child process of one server, from its start to its end; each replica owns one."""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from runtime.errors import RuntimeFault
from runtime.replicas.settings import Settings
from runtime.replicas.upstream import open_client

__all__ = ["ServerProcess"]

_ROOT = Path(__file__).resolve().parent.parent.parent
_MODULE = "runtime.replicas.server_child"
_POLL_S = 0.1
_HEALTH_S = 5.0
# After the drain: the server closes its connections, and its scheduler ends.
_EXIT_S = 10.0


class ServerProcess:
    """A server on a free port of this machine's loopback.

    client  bound to its address
    facts   `/model_info`, where its cache events are, and its `page_size`
    """

    client: httpx.AsyncClient
    facts: Mapping[str, Any]

    def __init__(self, settings: Settings, hash_key: bytes, events_host: str) -> None:
        """Prepare a server; `start` starts it. `hash_key` is what hashes of salts are made with."""
        self._settings = settings
        self._hash_key = hash_key
        self._events_host = events_host

    async def start(self, environment: Mapping[str, str]) -> None:
        """Start the process, and return once it is ready.

        Raises RuntimeFault where it ends before.
        """
        with _reserved_port() as port, _key_file(self._hash_key) as key_file:
            flags = self._settings.server_flags(
                port=port, events_host=self._events_host, hash_key_file=key_file
            )
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, *flags], cwd=_ROOT, env=dict(environment)
            )
            self.client = open_client(f"http://127.0.0.1:{port}")
            while not await self._answers("/ready"):
                if (code := self._process.poll()) is not None:
                    raise RuntimeFault(f"a replica's server exited with {code} at its start")
                await asyncio.sleep(_POLL_S)
        self.facts = await self._read_facts()

    async def _answers(self, path: str) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return (await self.client.get(path, timeout=_HEALTH_S)).status_code == 200
        return False

    async def _read_facts(self) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {key}"} if (key := self._admin_key()) else {}
        model = (await self.client.get("/model_info", headers=headers)).json()
        info = (await self.client.get("/server_info", headers=headers)).json()
        events = (await self.client.get("/kv_event_sources", headers=headers)).json()["0"]
        return {
            **{name: model[name] for name in ("context_length", "vocab_size", "model_type")},
            "page_size": info["page_size"],
            "endpoint": events["endpoint"],
            "replay_endpoint": events["replay_endpoint"],
        }

    def _admin_key(self) -> str | None:
        config = self._settings.config
        if config.api_key_file is None:
            return config.api_key
        from runtime.api_keys import read_api_keys

        return read_api_keys(config.api_key_file)[0].key

    @property
    def exit_code(self) -> int | None:
        """How the process ended, None while it runs."""
        return self._process.poll()

    async def is_healthy(self) -> bool:
        """Say whether the process lives and its engine answers."""
        return self.exit_code is None and await self._answers("/health")

    async def wait(self) -> int:
        """Return the exit code once the process has ended."""
        while (code := self.exit_code) is None:
            await asyncio.sleep(_POLL_S)
        return code

    async def stop(self) -> None:
        """Let the server drain and end; kill it where it does not."""
        await self.client.aclose()
        if self.exit_code is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.wait(), self._settings.config.drain_timeout + _EXIT_S)
        except TimeoutError:
            self._process.kill()


@contextlib.contextmanager
def _reserved_port() -> Iterator[int]:
    """Reserve a loopback port that a server of ours may still listen on (on Linux)."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


@contextlib.contextmanager
def _key_file(key: bytes) -> Iterator[str]:
    """Keep a key in a file that only this user reads, until the server has read it."""
    with tempfile.TemporaryDirectory(prefix="umbra-") as folder:
        path = Path(folder) / f"key-{secrets.token_hex(4)}"
        path.touch(mode=0o600)
        path.write_bytes(key)
        yield os.fspath(path)
