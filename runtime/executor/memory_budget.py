"""How many full pages, SWA pages and states the pools get."""

from dataclasses import replace

import numpy as np

from mem_cache.spec import CacheSpec, PoolSizes, TreeSpec
from runtime.config import ServerConfig
from runtime.device_sizes import DeviceSizes, device_sizes
from runtime.errors import ConfigError

# Their numbers are int32 wherever they are kept.
MOST_UNITS = (1 << 31) - 1
# Rows never take more than this share of the budget; fewer run at once where they would.
ROW_SHARE = 0.5


def pool_sizes(
    config: ServerConfig, cache: CacheSpec, given: DeviceSizes | None = None
) -> PoolSizes:
    """Return the size of each pool: what flags say, the rest out of the bytes that are given.

    given  rows and bytes; None: those of a server on the CPU

    Rows come first, a window and a state each, and one of both more to copy from; then resume
    points get their share; full pages take what is left. A model without windows, or without a
    state, has none of these units. Raises ConfigError when a pool would be too small for even one
    request, or larger than can be numbered, and for the flag of a pool that the model has not.
    """
    given = given or device_sizes(config, "cpu")
    budget = given.kv_cache_bytes or 0
    tree, rows = cache.tree, given.max_running_requests
    window_bytes = tree.window_pages * cache.swa_page_bytes
    row, point = window_bytes + cache.live_state_bytes, window_bytes + cache.state_bytes
    while rows > 1 and rows * row > budget * ROW_SHARE:
        rows //= 2
    spare = max(0, budget - rows * row - point)
    points = 0
    if tree.has_points:
        # Where points weigh nothing, each page may have one.
        share = int(spare * config.resume_point_share)
        points = share // point if point else _full_pages(config, cache, spare)
    states = rows + 1 + points if tree.has_state else 0
    sizes = PoolSizes(
        full_pages=0,
        swa_pages=_flag_or(config.swa_pages, (rows + 1 + points) * tree.window_pages),
        states=_flag_or(config.rings, states),
        live_states=rows if cache.packs_states else 0,
    )
    rest = budget - sum(pool_shares(cache, sizes).values())
    sizes = replace(sizes, full_pages=_full_pages(config, cache, rest))
    _check_sizes(config, cache, sizes)
    return sizes


def _flag_or(flag: int | None, units: int) -> int:
    return units if flag is None else flag


def _check_sizes(config: ServerConfig, cache: CacheSpec, sizes: PoolSizes) -> None:
    """Raise ConfigError for pools that serve no request, or have too many units."""
    tree, row_swa, states = cache.tree, cache.tree.row_swa_pages, int(cache.tree.has_state)
    for flag, value, is_there, what in (
        ("--swa-pages", config.swa_pages, tree.window > 0, "no windows"),
        ("--rings", config.rings, tree.has_state, "no compress state"),
    ):
        if value is not None and not is_there:
            raise ConfigError(f"{flag} {value}: this model has {what}")
    small = sizes.full_pages < 1 or sizes.kept_states < states
    if small or sizes.swa_pages < row_swa:
        raise ConfigError(
            f"the pools are too small for one request: {sizes.full_pages} full pages of "
            f"{cache.full_page_bytes} bytes (1 needed), {sizes.swa_pages} SWA pages of "
            f"{cache.swa_page_bytes} bytes ({row_swa} needed), {sizes.states} rings of "
            f"{cache.state_bytes} bytes ({sizes.live_states + states} needed); raise "
            "--kv-cache-bytes or the flag of that pool"
        )
    if max(sizes.full_pages, sizes.swa_pages, sizes.states) > MOST_UNITS:
        raise ConfigError(
            f"a pool has at most {MOST_UNITS} pages or rings, not {sizes.full_pages} full pages, "
            f"{sizes.swa_pages} SWA pages and {sizes.states} rings: lower --kv-cache-bytes, or the "
            "flags of the pools"
        )


def pool_shares(cache: CacheSpec, sizes: PoolSizes) -> dict[str, int]:
    """Return the bytes of each pool's units: full pages, SWA pages, states ("rings")."""
    live = sizes.live_states * cache.live_state_bytes
    return {
        "full": sizes.full_pages * cache.full_page_bytes,
        "swa": sizes.swa_pages * cache.swa_page_bytes,
        "rings": live + sizes.kept_states * cache.state_bytes,
    }


def context_limit(config: ServerConfig, most: int) -> int:
    """Return the longest prompt plus output, by flag or model. Raises ConfigError.

    most  tokens that the model takes
    """
    limit = most if config.context_length is None else config.context_length
    if limit < 2:
        raise ConfigError(f"--context-length {limit} must be at least 2: a prompt and an answer")
    if limit > most:
        raise ConfigError(f"--context-length {limit} exceeds the model's {most}")
    return limit


def context_tokens(config: ServerConfig, most: int, tree: TreeSpec, sizes: PoolSizes) -> int:
    """Return the longest prompt plus output, no more than the pages hold. Raises ConfigError.

    most  tokens that the model takes
    """
    return min(context_limit(config, most), sizes.full_pages * tree.page_size)


def _full_pages(config: ServerConfig, cache: CacheSpec, rest_bytes: int) -> int:
    if config.full_pages is not None:
        return config.full_pages
    if config.max_total_tokens is not None:
        return config.max_total_tokens // cache.tree.page_size
    # The tree keeps a page's tokens, whatever records there are of it: none where no layer
    # compresses.
    token_bytes = cache.tree.page_size * np.dtype(np.int32).itemsize
    return max(0, rest_bytes) // max(cache.full_page_bytes, token_bytes)
