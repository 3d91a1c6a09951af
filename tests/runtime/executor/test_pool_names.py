"""Names of the pools that users know."""

from mem_cache.spec import CacheSpec, Paged, PoolSizes, State, Window
from runtime.executor.pool_names import (
    PoolUsage,
    Usage,
    pool_facts,
    pool_gauges,
    pool_views,
    pools_in_words,
)

USAGE = Usage(PoolUsage(10, 3, 5), PoolUsage(8, 8, 0), PoolUsage(4, 1, 3))
CACHE = CacheSpec(
    "fp32",
    paged=(Paged("kv", 100),),
    windows=(Window("window", 8, 10),),
    states=(State("sums", live_bytes=6, kept_bytes=4),),
    replay_tokens=15,
    page_size=16,
    swa_page_size=8,
)


def test_gauges_have_the_names_of_flags() -> None:
    gauges = pool_gauges(USAGE)

    assert (gauges["full_pages"], gauges["swa_pages"], gauges["rings"]) == (10, 8, 4)
    assert (gauges["full_pages_free"], gauges["full_pages_evictable"]) == (3, 2)
    assert (gauges["rings_free"], gauges["rings_evictable"]) == (1, 0)
    assert (gauges["full_usage"], gauges["swa_usage"], gauges["ring_usage"]) == (0.5, 0, 0.75)


def test_a_pool_that_a_model_has_not_is_empty_and_unused() -> None:
    none = PoolUsage(0, 0, 0)

    gauges = pool_gauges(Usage(USAGE.full, none, none))

    assert (gauges["swa_pages"], gauges["swa_usage"], gauges["ring_usage"]) == (0, 0.0, 0.0)
    assert [name for name, _ in pool_views(USAGE)] == ["full", "swa", "rings"]


def test_facts_tell_units_and_what_they_weigh() -> None:
    facts = pool_facts(CACHE, PoolSizes(7, 5, states=9, live_states=2))

    assert (facts["full_pages"], facts["swa_pages"], facts["rings"]) == (7, 5, 9)
    assert (facts["full_page_bytes"], facts["swa_page_bytes"], facts["ring_bytes"]) == (100, 10, 4)
    assert facts["rings_pool_bytes"] == 2 * 6 + 7 * 4
    assert (facts["window"], facts["replay_tokens"], facts["max_total_num_tokens"]) == (8, 15, 112)


def test_the_log_tells_shares() -> None:
    words = pools_in_words(CACHE, PoolSizes(7, 25, states=50, live_states=25))

    assert words == (
        "7 full pages (700 bytes, 58.3 %), 25 SWA pages (250 bytes, 20.8 %), "
        "50 rings (250 bytes, 20.8 %)"
    )
