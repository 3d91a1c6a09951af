"""Flags decide, the rest comes out of the byte budget, and it is never exceeded."""

import dataclasses

import pytest

from layers.models.deepseek_v4.config import ModelConfig, pool_spec
from layers.models.deepseek_v4.layout import cache_spec
from layers.models.deepseek_v4.pool_spec import RecordFormat
from mem_cache.spec import CacheSpec, Paged, PoolSizes
from runtime.config import ServerConfig
from runtime.errors import ConfigError
from runtime.executor.memory_budget import MOST_UNITS, context_limit, pool_shares, pool_sizes
from tests.testing.tiny_model import CONFIG, PACKED


def cache_of(config: ModelConfig, record_format: RecordFormat) -> CacheSpec:
    return cache_spec(pool_spec(config, record_format))


CACHE = cache_of(CONFIG, "fp32")
ROW_SWA = CACHE.tree.row_swa_pages


def total_bytes(sizes: PoolSizes) -> int:
    return (
        sizes.full_pages * CACHE.full_page_bytes
        + sizes.swa_pages * CACHE.swa_page_bytes
        + sizes.states * CACHE.state_bytes
    )


@pytest.mark.parametrize("budget", [1 << 22, 5_000_001, 1 << 24, 1 << 28, 1 << 32])
@pytest.mark.parametrize("rows", [1, 3, 64])
def test_the_budget_is_used_up_and_not_exceeded(budget: int, rows: int) -> None:
    sizes = pool_sizes(ServerConfig(kv_cache_bytes=budget, max_running_requests=rows), CACHE)

    assert budget - CACHE.full_page_bytes < total_bytes(sizes) <= budget
    assert sizes.swa_pages >= ROW_SWA
    assert sizes.states >= 1


def test_rows_have_their_windows_and_rings_and_points_their_share() -> None:
    budget, rows = 1 << 32, 8
    config = ServerConfig(kv_cache_bytes=budget, max_running_requests=rows)

    sizes = pool_sizes(config, CACHE)

    points = sizes.states - rows - 1
    window = CACHE.tree.window_pages
    assert sizes.swa_pages == (rows + 1 + points) * window
    weight = points * (window * CACHE.swa_page_bytes + CACHE.state_bytes)
    assert 0.099 < weight / budget <= 0.1


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_share_of_points_is_adjustable(share: float) -> None:
    config = ServerConfig(kv_cache_bytes=1 << 28, max_running_requests=2, resume_point_share=share)
    if share == 1.0:
        with pytest.raises(ConfigError, match="too small for one request"):
            pool_sizes(config, CACHE)
        return

    shares = pool_shares(CACHE, pool_sizes(config, CACHE))

    assert shares["full"] / sum(shares.values()) == pytest.approx(1 - share, abs=0.01)


def test_rows_give_way_to_pages_where_bytes_are_short() -> None:
    budget = 1 << 24
    sizes = pool_sizes(ServerConfig(kv_cache_bytes=budget, max_running_requests=1 << 12), CACHE)

    assert 1 <= sizes.states < 1 << 12
    assert sizes.full_pages * CACHE.full_page_bytes > budget // 4


def test_packed_records_make_other_sizes() -> None:
    config = ServerConfig(kv_cache_bytes=1 << 26)

    assert pool_sizes(config, cache_of(PACKED, "fp8")) != pool_sizes(config, CACHE)


def test_pages_without_records_are_as_many_as_their_tokens_have_bytes() -> None:
    window_only = dataclasses.replace(CONFIG, compress_ratios=(0,) * CONFIG.num_hidden_layers)
    cache = cache_of(window_only, "fp32")
    config = ServerConfig(kv_cache_bytes=1 << 28, max_running_requests=1, resume_point_share=0.0)

    sizes = pool_sizes(config, cache)

    rest = (1 << 28) - sizes.swa_pages * cache.swa_page_bytes
    assert cache.full_page_bytes == 0
    assert sizes.full_pages == rest // (4 * cache.tree.page_size)


def test_flags_are_taken_as_they_are() -> None:
    config = ServerConfig(full_pages=7, swa_pages=ROW_SWA, rings=3, kv_cache_bytes=1)

    assert pool_sizes(config, CACHE) == PoolSizes(7, ROW_SWA, 3)


@pytest.mark.parametrize(("tokens", "pages"), [(256, 1), (511, 1), (512, 2), (100_000, 390)])
def test_a_number_of_tokens_is_rounded_down_to_pages(tokens: int, pages: int) -> None:
    assert pool_sizes(ServerConfig(max_total_tokens=tokens), CACHE).full_pages == pages


@pytest.mark.parametrize("wide", ["full_pages", "kv_cache_bytes"])
def test_no_more_pages_are_taken_than_can_be_numbered(wide: str) -> None:
    config = dataclasses.replace(ServerConfig(), **{wide: (1 << 63) - 1})

    with pytest.raises(ConfigError, match="at most 2147483647"):
        pool_sizes(config, CACHE)
    assert pool_sizes(ServerConfig(full_pages=MOST_UNITS), CACHE).full_pages == MOST_UNITS


def test_a_context_has_room_for_a_prompt_and_an_answer() -> None:
    for length in (-1, 0, 1):
        with pytest.raises(ConfigError, match="at least 2"):
            context_limit(ServerConfig(context_length=length), 4096)
    assert context_limit(ServerConfig(context_length=2), 4096) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"full_pages": 0},
        {"full_pages": -3},
        {"max_total_tokens": 255},
        {"swa_pages": ROW_SWA - 1},
        {"swa_pages": 0},
        {"rings": -1},
        {"rings": 0},
        {"kv_cache_bytes": 1000},
        {"kv_cache_bytes": -5},
    ],
)
def test_pools_too_small_for_one_request_are_refused(change: dict[str, int]) -> None:
    config = dataclasses.replace(ServerConfig(), **change)

    with pytest.raises(ConfigError, match="too small for one request"):
        pool_sizes(config, CACHE)


PAGES_ALONE = CacheSpec("fp32", paged=(Paged("kv", 4096),))


def test_a_model_of_pages_alone_has_all_bytes_in_pages() -> None:
    config = ServerConfig(kv_cache_bytes=1 << 22, max_running_requests=64)

    assert pool_sizes(config, PAGES_ALONE) == PoolSizes(1 << 10, 0, 0)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (ServerConfig(swa_pages=8), "--swa-pages 8: this model has no windows"),
        (ServerConfig(rings=3), "--rings 3: this model has no compress state"),
    ],
)
def test_the_flag_of_a_pool_that_is_not_there_is_refused(config: ServerConfig, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        pool_sizes(config, PAGES_ALONE)


def test_rows_have_states_of_their_own_where_points_keep_smaller_ones() -> None:
    cache = cache_spec(pool_spec(CONFIG, "fp32", draft_tokens=3))
    config = ServerConfig(kv_cache_bytes=1 << 28, max_running_requests=8)

    sizes = pool_sizes(config, cache)

    assert sizes.live_states == 8
    points = sizes.kept_states - 1
    assert sizes.swa_pages == (8 + 1 + points) * cache.tree.window_pages
    assert 0 <= (1 << 28) - sum(pool_shares(cache, sizes).values()) < cache.full_page_bytes
    few = ServerConfig(kv_cache_bytes=1 << 28, max_running_requests=8, rings=8)
    with pytest.raises(ConfigError, match=r"8 rings of \d+ bytes \(9 needed\)"):
        pool_sizes(few, cache)
