"""Is it alive, may it be sent work, does it answer: three questions, three endpoints."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import Aborted, QueueFull, RequestError
from runtime.sampling import SamplingSpec
from runtime.server.metrics import CONTENT_TYPE
from runtime.server.replies import until_disconnect
from runtime.server.runs import gather
from runtime.server.service import Service
from runtime.tokenizer.call import GenerateCall

# Heartbeats come twice a second from a thread of their own.
HEARTBEAT_LIMIT_S = 5.0
_PROBE_LIMIT_S = 20.0
_LOOK_EVERY_S = 1.0
# Counters of the scheduler that grow while it computes.
_WORK = ("generation_tokens", "computed_prompt_tokens")
# No client's namespace is spelled so: probes share nothing with anybody.
_PROBE_NAMESPACE = "health"


class HealthRoutes:
    """Handlers of `/health`, `/ready`, `/health_generate` and `/metrics`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def health(self, request: Request) -> Response:
        """Say whether the engine lives; asks nobody, so that a busy server answers at once."""
        return _empty(self._alive())

    async def ready(self, request: Request) -> Response:
        """Say whether new requests are taken: alive, and not draining."""
        return _empty(self._alive() and not self._service.manager.draining)

    async def health_generate(self, request: Request) -> Response:
        """Sample one token, in no count of requests; say whether the engine gives any.

        A full queue counts as health, too, and so does a client that aborts everything.
        """
        try:
            await until_disconnect(request, asyncio.wait_for(self._probe(), _PROBE_LIMIT_S))
        except (QueueFull, Aborted):
            return _empty(True)
        except (RequestError, TimeoutError):
            return _empty(False)
        return _empty(True)

    async def _probe(self) -> None:
        """Return once there is a token, or others are seen to advance while it waits for a row."""
        manager = self._service.manager
        probe = GenerateCall(
            sampling=SamplingSpec(max_new_tokens=1, temperature=0.0, ignore_eos=True),
            input_ids=[0],
            namespace=_PROBE_NAMESPACE,
            stream=False,
            measured=False,
        )
        work = asyncio.ensure_future(gather(manager, [probe]))
        before: float | None = None
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=_LOOK_EVERY_S)
                state = manager.last_state
                computed = sum(state.counters.get(name, 0.0) for name in _WORK) if state else 0.0
                if before is not None and computed > before and not work.done():
                    return
                before = computed
            work.result()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def metrics(self, request: Request) -> Response:
        """Return the metrics in Prometheus' text format."""
        text = self._service.metrics.render(await self._service.state())
        return Response(text, media_type=CONTENT_TYPE)

    def _alive(self) -> bool:
        manager = self._service.manager
        silence_s = manager.clock() - manager.last_heartbeat
        return manager.dead is None and silence_s <= HEARTBEAT_LIMIT_S


def _empty(good: bool) -> Response:
    return Response(status_code=200 if good else 503)
