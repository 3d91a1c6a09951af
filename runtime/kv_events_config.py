"""What `--kv-events-config` may say: the JSON that vLLM's and SGLang's users type, checked.

Source: `KVEventsConfig` of vLLM 0.33 and SGLang 0.5. Keys and meanings are theirs; the defaults
differ where theirs would listen on every interface or keep more than a replay can give back.
"""

import re
from typing import Annotated, Literal

import msgspec

from runtime.errors import ConfigError

FLAG = "--kv-events-config"
HASH_KEY_BYTES = 32

_TCP = re.compile(r"tcp://(\*|\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
# sun_path of a Unix socket holds 108 bytes, the last one a NUL.
_IPC = re.compile(r"ipc://(/[^\0]{1,106})")
_WILDCARDS = ("*", "0.0.0.0", "[::]")

_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class KvEventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where cache events go, and how much is kept for readers that are late.

    enable_kv_cache_events  vLLM's switch; false is off, whatever else is said
    publisher        "zmq", or "null" for off
    endpoint         of the PUB socket; port 0 takes any that is free
    bind             listen (true) or connect (false); None listens on wildcards, loopback and ipc
    replay_endpoint  of a ROUTER socket that gives old batches again; always listens
    topic            first frame of every message
    buffer_steps     batches kept for a replay
    hwm              batches that wait for one slow subscriber before it loses some
    max_queue_size   batches that wait for the publishing thread before some are lost
    hash_key_file    32 bytes that hashes of namespaces are made with, for a router that has them,
                     too; None: drawn at start, so that nobody can compute those hashes
    """

    enable_kv_cache_events: bool | None = None
    publisher: Literal["zmq", "null"] | None = None
    endpoint: str = "tcp://127.0.0.1:5557"
    bind: bool | None = None
    replay_endpoint: str | None = None
    topic: Annotated[str, msgspec.Meta(max_length=255)] = ""
    buffer_steps: _Count = 10_000
    hwm: _Count = 10_000
    max_queue_size: _Count = 10_000
    hash_key_file: str | None = None

    @property
    def listens(self) -> bool:
        """Whether the PUB socket binds; else it connects to a subscriber that does."""
        if self.bind is not None:
            return self.bind
        host = host_and_port(self.endpoint)[0]
        return not host or host in _WILDCARDS or _is_loopback(host)

    @property
    def leaves_the_machine(self) -> bool:
        """Whether others than this machine's users can get at the events."""
        hosts = [host_and_port(e)[0] for e in (self.endpoint, self.replay_endpoint) if e]
        return any(host and not _is_loopback(host) for host in hosts)


def parse_kv_events_config(text: str | None) -> KvEventsConfig | None:
    """Return what the flag asks for; None if it is not given or says off.

    Raises ConfigError for anything else than one JSON object with known keys and usable values.
    """
    if text is None:
        return None
    try:
        config = msgspec.json.decode(text, type=KvEventsConfig)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as fault:
        hint = f" (known: {', '.join(KvEventsConfig.__struct_fields__)})"
        raise ConfigError(f"{FLAG}: {fault}{hint if 'unknown' in str(fault) else ''}") from fault
    if config.enable_kv_cache_events is False or config.publisher == "null":
        return None
    if config.publisher is None and not config.enable_kv_cache_events:
        raise ConfigError(f'{FLAG}: say "publisher": "zmq", or leave the flag away')
    _check_endpoints(config)
    return config


def read_hash_key(config: KvEventsConfig) -> bytes | None:
    """Return the key of the hashes of namespaces; None without a file. Raises ConfigError."""
    if config.hash_key_file is None:
        return None
    try:
        with open(config.hash_key_file, "rb") as file:
            key = file.read(HASH_KEY_BYTES + 1)
    except (OSError, ValueError) as fault:
        raise ConfigError(f"{FLAG}: hash_key_file cannot be read: {fault}") from fault
    if len(key) != HASH_KEY_BYTES:
        raise ConfigError(f"{FLAG}: hash_key_file must have {HASH_KEY_BYTES} bytes")
    return key


def host_and_port(endpoint: str) -> tuple[str, int]:
    """Return host and port of a tcp endpoint, ("", 0) of an ipc one.

    Raises ConfigError for what is neither.
    """
    if _IPC.fullmatch(endpoint):
        return "", 0
    found = _TCP.fullmatch(endpoint)
    if found is None or int(found[2]) > 65535:
        raise ConfigError(
            f"{FLAG}: {endpoint!r} is no endpoint: give tcp://HOST:PORT or ipc:///PATH"
        )
    return found[1], int(found[2])


def _check_endpoints(config: KvEventsConfig) -> None:
    _, port = host_and_port(config.endpoint)
    if not config.listens and port == 0:
        raise ConfigError(f"{FLAG}: {config.endpoint} is connected to, so it needs a port")
    if config.replay_endpoint is None:
        return
    _, replay_port = host_and_port(config.replay_endpoint)
    both_listen = config.listens and config.replay_endpoint == config.endpoint
    if both_listen and not (port == replay_port == 0 and config.endpoint.startswith("tcp")):
        raise ConfigError(f"{FLAG}: endpoint and replay_endpoint are both {config.endpoint}")


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "[::1]") or host.startswith("127.")
