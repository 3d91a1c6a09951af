"""Command line of `python -m runtime.replicas`: how many servers, where, and their flags."""

import argparse
import dataclasses
import json
import sys
from typing import NoReturn

from runtime.command_line import parse_args
from runtime.config import ServerConfig
from runtime.errors import ConfigError
from runtime.supervision import resolve

__all__ = ["Settings", "build_parser", "read_settings"]

_PROGRAM = "python -m runtime.replicas"
# Given flags are those of the front; each replica gets its own address.
_OF_THE_FRONT = ("--host", "--port")
MOST_REPLICAS = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """The command line, read and checked.

    replicas      servers at the start, and at least
    max_replicas  servers at most: between the two their number follows the load
    ray_address   of a cluster that runs; None: one is started for this command
    cpus, gpus    of a node that each replica reserves; gpus None: as many as it has ranks, where
                  the cluster has any
    target_requests  requests in flight for each replica; above it another replica is started
    flags         of `launch_server.py` for each replica, without address
    config        what these flags say, with paths filled in
    """

    replicas: int
    max_replicas: int
    ray_address: str | None
    cpus: float
    gpus: int | None
    target_requests: float
    flags: tuple[str, ...]
    config: ServerConfig

    def server_flags(self, *, port: int, events_host: str, hash_key_file: str) -> list[str]:
        """Return the flags of one server, which listens on loopback.

        events_host  that cache events are published at, any free port
        """
        anywhere = f"tcp://{events_host}:0"
        events = {
            "publisher": "zmq",
            "endpoint": anywhere,
            "replay_endpoint": anywhere,
            "bind": True,
            "hash_key_file": hash_key_file,
        }
        own = ["--host", "127.0.0.1", "--port", str(port), "--kv-events-config", json.dumps(events)]
        # Ray asks every second.
        quiet = ["--uvicorn-access-log-exclude-prefixes", *_quiet(self.config), "/health"]
        return [*self.flags, *quiet, *own]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: error: {message}\n")


def build_parser() -> argparse.ArgumentParser:
    """Return a parser of the flags that `launch_server.py` does not have."""
    parser = _Parser(
        prog=_PROGRAM,
        description="Serve a model by several servers behind one address, on Ray Serve. All flags "
        "of launch_server.py are taken, too.",
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--replicas", type=int, default=2, help="servers, each with its own cache")
    parser.add_argument(
        "--max-replicas", type=int, help="most servers under load; default: --replicas"
    )
    parser.add_argument(
        "--target-requests",
        type=float,
        default=16.0,
        help="requests in flight for each server; above it another one is started",
    )
    parser.add_argument(
        "--ray-address",
        help="address of a running cluster (auto: this machine's); default: a new cluster",
    )
    parser.add_argument("--replica-cpus", type=float, default=0.0, help="cores that each reserves")
    parser.add_argument("--replica-gpus", type=int, help="GPUs that each reserves")
    return parser


def read_settings(argv: list[str]) -> Settings:
    """Return what the command line asks for.

    Exits with status 2 on misuse, as argparse does. Raises ConfigError for values that contradict
    each other, and for a checkpoint that is none.
    """
    known, flags = build_parser().parse_known_args(argv)
    config = resolve(parse_args(flags))
    if config.kv_events_config is not None:
        raise ConfigError("--kv-events-config is set for each replica: leave it out")
    if config.restart_scheduler:
        raise ConfigError("--restart-scheduler: Ray starts a replica again whose scheduler died")
    most = known.replicas if known.max_replicas is None else known.max_replicas
    if not 1 <= known.replicas <= most <= MOST_REPLICAS:
        raise ConfigError(
            f"--replicas must lie between 1 and --max-replicas, at most {MOST_REPLICAS}; "
            f"got {known.replicas} and {most}"
        )
    if not 0 < known.target_requests < 1e6:
        raise ConfigError("--target-requests must be a number above 0")
    return Settings(
        replicas=known.replicas,
        max_replicas=most,
        ray_address=known.ray_address,
        cpus=known.replica_cpus,
        gpus=known.replica_gpus,
        target_requests=known.target_requests,
        flags=tuple(_without_address(flags)),
        config=config,
    )


def _quiet(config: ServerConfig) -> tuple[str, ...]:
    return config.uvicorn_access_log_exclude_prefixes or ()


def _without_address(flags: list[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for flag in flags:
        if skip:
            skip = False
        elif flag in _OF_THE_FRONT:
            skip = True
        elif not flag.startswith(tuple(f"{name}=" for name in _OF_THE_FRONT)):
            kept.append(flag)
    return kept
