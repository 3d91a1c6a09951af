"""What an executor tells of its network, as bytes and back."""

import dataclasses

import msgspec

from layers.models.deepseek_v4.config import pool_spec
from layers.models.deepseek_v4.layout import cache_spec
from mem_cache.spec import PoolSizes
from runtime.wire.loaded import Loaded
from tests.testing.tiny_model import CONFIG


def test_all_that_is_told_arrives() -> None:
    """The scheduler plans with the cache's sizes: each of their fields counts."""
    told = Loaded(
        cache=cache_spec(pool_spec(CONFIG, "fp32", draft_tokens=2)),
        sizes=PoolSizes(3, 8, 2),
        context_tokens=768,
        pool_bytes=1 << 40,
        graphs=True,
        in_flight=True,
        facts={"device": "cpu", "weight_bytes": 7, "share": 0.5, "whole": False},
        step_context=None,
        step_samples=4,
    )

    data = msgspec.msgpack.encode(told)

    got = msgspec.msgpack.decode(data, type=Loaded)
    assert got == told
    assert dataclasses.asdict(got.cache) == dataclasses.asdict(told.cache)
    assert type(got.cache.tree) is type(told.cache.tree)
