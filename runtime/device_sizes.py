"""Sizes that flags leave to the device a network computes on."""

from dataclasses import dataclass

from runtime.config import ServerConfig


@dataclass(frozen=True, slots=True)
class DeviceSizes:
    """What depends on the device where no flag says it; see the flags of the same names.

    kv_cache_bytes  None: what the device has left
    """

    max_running_requests: int
    chunked_prefill_size: int
    kv_cache_bytes: int | None


_DEFAULTS = {"cpu": DeviceSizes(64, 2048, 1 << 30), "cuda": DeviceSizes(128, 8192, None)}


def device_sizes(config: ServerConfig, device: str) -> DeviceSizes:
    """Return what flags say, and for the rest the defaults of the device, "cpu" or "cuda"."""
    default = _DEFAULTS[device]
    return DeviceSizes(
        config.max_running_requests or default.max_running_requests,
        config.chunked_prefill_size or default.chunked_prefill_size,
        default.kv_cache_bytes if config.kv_cache_bytes is None else config.kv_cache_bytes,
    )
