"""`python -m runtime.replicas`: start the replicas on Ray Serve, and stop them on a signal.

SIGTERM and SIGINT drain and end all. SIGHUP replaces the replicas one after the other, each once
its requests are answered: a rolling upgrade, where the checkout has changed.

Exit codes: 0 stopped by a signal, 1 a fault, 2 flags that cannot be served, or no Ray installed.
"""

import importlib.util
import os
import sys

from runtime.child import CONFIG_EXIT_CODE, configure_logging
from runtime.errors import ConfigError, RuntimeFault
from runtime.replicas.settings import read_settings

__all__ = ["run"]

_INSTALL = "replicas need Ray Serve and httpx: pip install -e '.[cpu,ray]'"


def run(argv: list[str]) -> int:
    """Serve until a signal stops it; return the exit code."""
    try:
        settings = read_settings(argv)
        if any(importlib.util.find_spec(name) is None for name in ("ray", "httpx")):
            raise ConfigError(_INSTALL)
        configure_logging(settings.config.log_level)
        # Before Ray is imported: no report of its use leaves the machine.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        from runtime.replicas.ray_service import serve_replicas

        return serve_replicas(settings)
    except ConfigError as fault:
        print(f"error: {fault}", file=sys.stderr)
        return CONFIG_EXIT_CODE
    except RuntimeFault as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
