"""The application on a Ray cluster: deployed, replaced and shut down as signals ask."""

import logging
import os
import secrets
import signal
import threading
from pathlib import Path

import ray
from ray import serve

from runtime.errors import RuntimeFault
from runtime.kv_events_config import HASH_KEY_BYTES
from runtime.replicas.ray_app import build
from runtime.replicas.settings import Settings

__all__ = ["serve_replicas"]

logger = logging.getLogger("umbra.replicas")

_APP = "umbra"
_KEEP_IDLE_S = 75
# Threads of servers, and where they find what they are made of, are the caller's.
_PASSED_ON = ("OMP_NUM_THREADS", "PYTHONPATH")
_ROOT = Path(__file__).resolve().parent.parent.parent


class _Wishes:
    """What signals ask for: the end, or new replicas.

    starting  the end is wanted at once: KeyboardInterrupt is raised
    """

    def __init__(self) -> None:
        self.news = threading.Event()
        self.starting = True
        self.stop = False
        self.renew = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_renew)

    def _on_stop(self, *_: object) -> None:
        if self.starting:
            raise KeyboardInterrupt
        self.stop = True
        self.news.set()

    def _on_renew(self, *_: object) -> None:
        self.renew = True
        self.news.set()


def serve_replicas(settings: Settings) -> int:
    """Serve until told to stop; return the exit code. Raises RuntimeFault."""
    config = settings.config
    local = settings.ray_address is None
    try:
        ray.init(
            # Not None: that would be any cluster that was started here before.
            address=settings.ray_address or "local",
            include_dashboard=False if local else None,
            runtime_env={"env_vars": {"PYTHONPATH": str(_ROOT)}},
            logging_level=logging.WARNING,
        )
    except ConnectionError as fault:
        reason = str(fault.__cause__ or fault).strip().splitlines()[-1]
        raise RuntimeFault(f"--ray-address {settings.ray_address}: {reason}") from fault
    serve.start(
        proxy_location="HeadOnly" if local else "EveryNode",
        http_options={
            "host": config.host,
            "port": config.port,
            "keep_alive_timeout_s": _KEEP_IDLE_S,
        },
    )
    hash_key = secrets.token_bytes(HASH_KEY_BYTES)
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    wishes = _Wishes()

    def deploy() -> None:
        app = build(settings, hash_key, environment, gpus=_gpus(settings), local=local)
        serve.run(app, name=_APP, route_prefix="/")

    def upgrade() -> None:
        logger.info("replacing the replicas, one after the other")
        try:
            deploy()
        except RuntimeError as fault:
            logger.error("the replicas were not all replaced, those that run stay: %s", fault)

    try:
        deploy()
        wishes.starting = False
        logger.info("%d replicas at http://%s:%d", settings.replicas, config.host, config.port)
        while not wishes.stop:
            wishes.news.wait()
            wishes.news.clear()
            if wishes.renew and not wishes.stop:
                wishes.renew = False
                upgrade()
        logger.info("stopping: requests on their way may finish")
        return 0
    except KeyboardInterrupt:
        return 0
    except RuntimeError as fault:
        raise RuntimeFault(f"Ray Serve: {fault}") from fault
    finally:
        wishes.starting = False
        if local:
            serve.shutdown()
        else:
            serve.delete(_APP)
        ray.shutdown()


def _gpus(settings: Settings) -> int:
    """Return how many GPUs each replica reserves."""
    if settings.gpus is not None:
        return settings.gpus
    config = settings.config
    has_any = ray.cluster_resources().get("GPU", 0) > 0
    return config.tp_size if has_any and config.device != "cpu" else 0
