"""Umbra as an application of Ray Serve: a deployment of servers, and one of the front."""

import asyncio
import itertools
import logging
import os
import sys
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle

import runtime.replicas.desk as shared
from runtime.api_keys import read_api_keys
from runtime.errors import ConfigError
from runtime.replicas.board import RoutedRequest
from runtime.replicas.fleet import ReplicaGone
from runtime.replicas.front import Front
from runtime.replicas.prompt_keys import PromptKeys
from runtime.replicas.prompt_reader import GENERATES, PromptReader
from runtime.replicas.server_process import ServerProcess
from runtime.replicas.settings import Settings
from runtime.replicas.upstream import Head, HttpRequest, UpstreamFailed, forward
from runtime.server.auth import RequireKey
from runtime.server.same_site import SameSite

__all__ = ["build"]

logger = logging.getLogger("umbra.replicas")

_HEALTH_PERIOD_S = 1.0
_HEALTH_TIMEOUT_S = 10.0
# Interval at which replicas are polled for the addresses of their events.
_STATS_PERIOD_S = 1.0
# Time for error replies to leave before the actor of a dead server ends.
_LAST_WORDS_S = 0.3
# The servers bound their queues themselves.
_MOST_ONGOING = 100_000
_SET_BY_RAY = ("OMP_NUM_THREADS",)
# How long load must exceed the target: a server takes at least as long to start.
_UPSCALE_DELAY_S = 10.0


class Server:
    """The actor of one replica: it owns a server, and forwards requests to it."""

    async def __init__(
        self, settings: Settings, hash_key: bytes, environment: Mapping[str, str], *, local: bool
    ) -> None:
        """Start the server and wait for it; `local`: the cluster is this machine alone."""
        host = "127.0.0.1" if local else ray.util.get_node_ip_address()
        self._name = serve.get_replica_context().replica_id.unique_id
        self._server = ServerProcess(settings, hash_key, host)
        # Ray sets this for itself; a server counts its cores.
        own = {name: value for name, value in os.environ.items() if name not in _SET_BY_RAY}
        await self._server.start({**own, **environment})
        self._watching = asyncio.ensure_future(self._end_with_server())

    async def _end_with_server(self) -> None:
        """End this process soon after its server, so that Ray starts another replica."""
        code = await self._server.wait()
        print(f"the server of replica {self._name} ended with {code}", file=sys.stderr)
        await asyncio.sleep(_LAST_WORDS_S)
        os._exit(1)

    async def forward(self, request: HttpRequest) -> AsyncGenerator[Head | bytes, None]:
        """Yield the server's reply. Raises UpstreamFailed."""
        if request.replica not in (None, self._name):
            raise UpstreamFailed(f"replica {request.replica} is gone")
        stream = forward(self._server.client, request)
        try:
            async for part in stream:
                yield part
        finally:
            await stream.aclose()

    def record_routing_stats(self) -> dict[str, Any]:
        """Return the addresses of this server's cache events, and facts for reading prompts."""
        return dict(self._server.facts)

    async def check_health(self) -> None:
        """Raise RuntimeError where the server does not answer."""
        if not await self._server.is_healthy():
            raise RuntimeError("the server does not answer")

    async def __del__(self) -> None:
        """Stop the server; Serve calls this when no request is in flight any more."""
        if hasattr(self, "_watching"):  # else it never started, and there is nothing to stop
            self._watching.cancel()
            await self._server.stop()


class RayFleet:
    """The servers as the front sees them."""

    def __init__(self, servers: "DeploymentHandle[Any]") -> None:
        self._forward = servers.options(stream=True, method_name="forward")
        self._numbers = itertools.count()

    def names(self) -> Sequence[str]:
        """Return the replicas that take requests now."""
        return shared.DESK.board.names()

    async def open(
        self, request: HttpRequest, routed: RoutedRequest, avoid: Collection[str] = ()
    ) -> AsyncGenerator[Head | bytes, None]:
        """Yield one replica's reply. Raises ReplicaGone."""
        number = next(self._numbers)
        numbered = replace(request, number=number)
        shared.DESK.to_place[number] = routed, tuple(avoid)
        parts = self._forward.remote(numbered)
        ended = False
        try:
            async for part in parts:
                yield part
            ended = True
        except Exception as fault:
            # Whatever Ray raises for a dead actor, a node that is gone, or a server that broke off.
            ended = True
            raise ReplicaGone(f"{type(fault).__name__}: {str(fault).strip()[-300:]}") from fault
        finally:
            del shared.DESK.to_place[number]
            if not ended:
                parts.cancel()


class RayKeys:
    """Reads prompts, once a server has published the facts that this needs."""

    def __init__(self, settings: Settings, hash_key: bytes) -> None:
        self._settings = settings
        self._hash_key = hash_key
        self._reader: PromptReader | None = None
        self._cannot = False

    async def of(self, request: HttpRequest) -> PromptKeys | None:
        """Return the keys of a request's prompt."""
        if request.path.partition("?")[0] not in GENERATES or not shared.DESK.facts:
            return None
        reader = self._reader or await self._load()
        prompt = None if reader is None else await reader.read(request)
        if prompt is None:
            return None
        return PromptKeys.of(
            prompt.tokens,
            block_size=int(shared.DESK.facts["page_size"]),
            namespace=prompt.namespace,
            key=self._hash_key,
        )

    async def _load(self) -> PromptReader | None:
        """Return the reader; None where this node lacks the model's files."""
        if self._cannot:
            return None
        try:
            config, facts = self._settings.config, shared.DESK.facts
            self._reader = await asyncio.to_thread(PromptReader, config, facts)
        except (ConfigError, OSError) as fault:
            self._cannot = True
            logger.error(
                "cannot read prompts on this node, so requests are routed by load alone: %s", fault
            )
        return self._reader


@serve.ingress()
class FrontDoor:
    """The actor that gets clients' requests from Serve's HTTP proxies."""

    def __init__(
        self, servers: "DeploymentHandle[Any]", settings: Settings, hash_key: bytes
    ) -> None:
        self._settings = settings
        self._fleet = RayFleet(servers)
        self._keys = RayKeys(settings, hash_key)

    async def reconfigure(self, config: Any) -> None:
        """Connect to a server before the first request arrives."""
        routed = RoutedRequest(None)
        async for _ in self._fleet.open(HttpRequest("GET", "/version", [], b""), routed):
            pass
        shared.DESK.board.done(routed)

    def __serve_build_asgi_app__(self) -> Any:
        """Return the front behind the same checks of keys and origins as on a server."""
        config = self._settings.config
        app: Any = Front(self._fleet, shared.DESK.board, self._keys)
        keys = () if config.api_key_file is None else read_api_keys(config.api_key_file)
        if config.api_key is not None or keys:
            app = RequireKey(app, api_key=config.api_key, keys=keys)
        return SameSite(app, host=config.host, allowed=config.allowed_hosts)


def build(
    settings: Settings, hash_key: bytes, environment: Mapping[str, str], *, gpus: int, local: bool
) -> Any:
    """Return the application, to be run by `serve.run`.

    hash_key     32 bytes, of the hashes of salted prompts
    environment  variables of each server, besides its node's
    gpus         that each server reserves
    """
    scaling: dict[str, Any] = {"num_replicas": settings.replicas}
    if settings.max_replicas > settings.replicas:
        scaling = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=settings.replicas,
                max_replicas=settings.max_replicas,
                initial_replicas=settings.replicas,
                target_ongoing_requests=settings.target_requests,
                upscale_delay_s=_UPSCALE_DELAY_S,
            )
        }
    servers = serve.deployment(
        Server,
        name="servers",
        ray_actor_options={"num_cpus": settings.cpus, "num_gpus": gpus},
        max_ongoing_requests=_MOST_ONGOING,
        health_check_period_s=_HEALTH_PERIOD_S,
        health_check_timeout_s=_HEALTH_TIMEOUT_S,
        graceful_shutdown_timeout_s=settings.config.drain_timeout,
        request_router_config=RequestRouterConfig(
            request_router_class="runtime.replicas.ray_router.PrefixRouter",
            request_routing_stats_period_s=_STATS_PERIOD_S,
        ),
        **scaling,
    ).bind(settings, hash_key, environment, local=local)
    front = serve.deployment(
        FrontDoor,
        name="front",
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=_MOST_ONGOING,
        graceful_shutdown_timeout_s=settings.config.drain_timeout,
        user_config={},
    )
    return front.bind(servers, settings, hash_key)
