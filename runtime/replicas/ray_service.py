"""The application on a Ray cluster: deployed, and replaced or shut down by signals."""

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
# Servers have the caller's number of threads and search path, not those that Ray sets.
_PASSED_ON = ("OMP_NUM_THREADS", "PYTHONPATH")
_ROOT = Path(__file__).resolve().parent.parent.parent


class _Signals:
    """What signals have requested: to stop, or to replace the replicas.

    arrived   set by each signal
    starting  SIGINT and SIGTERM raise KeyboardInterrupt, since nothing is served yet
    """

    def __init__(self) -> None:
        self.arrived = threading.Event()
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
        self.arrived.set()

    def _on_renew(self, *_: object) -> None:
        self.renew = True
        self.arrived.set()

    def wait(self) -> None:
        """Wait for a signal that has not been waited for."""
        self.arrived.wait()
        self.arrived.clear()


def serve_replicas(settings: Settings) -> int:
    """Serve until a signal stops it; return the exit code. Raises RuntimeFault."""
    config, local = settings.config, settings.ray_address is None
    _start_serve(settings, local=local)
    hash_key = secrets.token_bytes(HASH_KEY_BYTES)
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    signals = _Signals()

    def deploy() -> None:
        app = build(settings, hash_key, environment, gpus=_gpus(settings), local=local)
        serve.run(app, name=_APP, route_prefix="/")

    def upgrade() -> None:
        logger.info("replacing the replicas, one after the other")
        try:
            deploy()
        except RuntimeError as fault:
            logger.error("not all replicas were replaced; the old ones go on serving: %s", fault)

    try:
        deploy()
        signals.starting = False
        logger.info("%d replicas at http://%s:%d", settings.replicas, config.host, config.port)
        while not signals.stop:
            signals.wait()
            if signals.renew and not signals.stop:
                signals.renew = False
                upgrade()
        logger.info("stopping: requests in flight may finish")
        return 0
    except KeyboardInterrupt:
        return 0
    except RuntimeError as fault:
        raise RuntimeFault(f"Ray Serve: {fault}") from fault
    finally:
        signals.starting = False
        if local:
            serve.shutdown()
        else:
            serve.delete(_APP)
        ray.shutdown()


def _start_serve(settings: Settings, *, local: bool) -> None:
    """Connect to the cluster, or start one, and start Serve's proxies. Raises RuntimeFault."""
    try:
        ray.init(
            # Not None: that would join any cluster that runs on this machine.
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
            "host": settings.config.host,
            "port": settings.config.port,
            "keep_alive_timeout_s": _KEEP_IDLE_S,
        },
    )


def _gpus(settings: Settings) -> int:
    """Return how many GPUs each replica reserves."""
    if settings.gpus is not None:
        return settings.gpus
    config = settings.config
    has_any = ray.cluster_resources().get("GPU", 0) > 0
    return config.tp_size if has_any and config.device != "cpu" else 0
