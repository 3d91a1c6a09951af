"""What people know the pools by: names in flags, metrics, /server_info, the log and the cache page.

Windows lie in "SWA pages", states are called "rings", whatever a model keeps in them. A pool that
a model has not is told as one of no units.
"""

from typing import Literal, NamedTuple

from mem_cache.spec import CacheSpec, PoolSizes
from runtime.executor.memory_budget import pool_shares

__all__ = [
    "POINT_FLAGS",
    "PoolUsage",
    "Usage",
    "pool_facts",
    "pool_gauges",
    "pool_views",
    "pools_in_words",
]

# Flags of the pools that resume points take their units from.
POINT_FLAGS = "--swa-pages, --rings"


class PoolUsage(NamedTuple):
    """Units of a pool, and how many of them are free, and held by requests.

    What is neither is cached, and can be evicted.
    """

    capacity: int
    free: int
    held: int

    @property
    def evictable(self) -> int:
        """Units that are cached and that nobody uses."""
        return self.capacity - self.free - self.held

    @property
    def share(self) -> float:
        """Share of the units that requests hold."""
        return self.held / self.capacity if self.capacity else 0.0


class Usage(NamedTuple):
    """Of all pools."""

    full: PoolUsage
    swa: PoolUsage
    states: PoolUsage


def pool_gauges(usage: Usage) -> dict[str, float]:
    """Return the gauges of the pools."""
    gauges: dict[str, float] = {}
    for units, pool in (
        ("full_pages", usage.full),
        ("swa_pages", usage.swa),
        ("rings", usage.states),
    ):
        gauges[units] = pool.capacity
        gauges[f"{units}_free"] = pool.free
        gauges[f"{units}_evictable"] = pool.evictable
    gauges["full_usage"], gauges["swa_usage"] = usage.full.share, usage.swa.share
    gauges["ring_usage"] = usage.states.share
    return gauges


def pool_views(usage: Usage) -> list[tuple[Literal["full", "swa", "rings"], PoolUsage]]:
    """Return the pools as the cache page names them."""
    return [("full", usage.full), ("swa", usage.swa), ("rings", usage.states)]


def pool_facts(cache: CacheSpec, sizes: PoolSizes) -> dict[str, int]:
    """Return what /server_info says of the pools: units, bytes of a unit, of all units."""
    return {
        "page_size": cache.page_size,
        "swa_page_size": cache.swa_page_size,
        "window": cache.tree.window,
        "full_pages": sizes.full_pages,
        "swa_pages": sizes.swa_pages,
        "rings": sizes.states,
        "full_page_bytes": cache.full_page_bytes,
        "swa_page_bytes": cache.swa_page_bytes,
        "ring_bytes": cache.state_bytes,
        **{f"{pool}_pool_bytes": size for pool, size in pool_shares(cache, sizes).items()},
        "replay_tokens": cache.replay_tokens,
        "max_total_num_tokens": sizes.full_pages * cache.page_size,
    }


def pools_in_words(cache: CacheSpec, sizes: PoolSizes) -> str:
    """Return how many units there are, what they weigh and which share that is, for the log."""
    shares = pool_shares(cache, sizes)
    total = max(1, sum(shares.values()))
    return ", ".join(
        f"{count} {units} ({size} bytes, {100 * size / total:.1f} %)"
        for count, units, size in (
            (sizes.full_pages, "full pages", shares["full"]),
            (sizes.swa_pages, "SWA pages", shares["swa"]),
            (sizes.states, "rings", shares["rings"]),
        )
    )
