"""Flags come before what a device has by default."""

import pytest

from runtime.config import ServerConfig
from runtime.device_sizes import DeviceSizes, device_sizes


@pytest.mark.parametrize(
    ("device", "sizes"),
    [("cpu", DeviceSizes(64, 2048, 1 << 30)), ("cuda", DeviceSizes(128, 8192, None))],
)
def test_each_device_has_its_defaults(device: str, sizes: DeviceSizes) -> None:
    assert device_sizes(ServerConfig(), device) == sizes


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_flags_come_first(device: str) -> None:
    config = ServerConfig(max_running_requests=3, chunked_prefill_size=-1, kv_cache_bytes=0)

    assert device_sizes(config, device) == DeviceSizes(3, -1, 0)
