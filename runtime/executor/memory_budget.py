"""How many pages, SWA pages and rings the pools get."""

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

    Rows come first, a window and a ring each, and one of both more to copy from; then resume points
    get their share; full pages take what is left. Raises ConfigError when a pool would be too
    small for even one request, or larger than can be numbered.
    """
    given = given or device_sizes(config, "cpu")
    budget = given.kv_cache_bytes or 0
    rows, window = given.max_running_requests, cache.tree.window_pages
    swa_bytes, ring, page = cache.swa_page_bytes, cache.ring_bytes, cache.full_page_bytes
    unit = window * swa_bytes + ring
    while rows > 1 and rows * unit > budget * ROW_SHARE:
        rows //= 2
    spare = max(0, budget - (rows + 1) * unit)
    # Where points weigh nothing, each page may have one.
    points = _full_pages(config, cache, spare)
    if unit:
        points = int(spare * config.resume_point_share) // unit
    swa_pages = (rows + 1 + points) * window if config.swa_pages is None else config.swa_pages
    rings = rows + 1 + points if config.rings is None else config.rings
    rest = budget - swa_pages * swa_bytes - rings * ring
    sizes = PoolSizes(_full_pages(config, cache, rest), swa_pages, rings)
    row_swa = cache.tree.row_swa_pages
    if sizes.full_pages < 1 or sizes.rings < 1 or sizes.swa_pages < row_swa:
        raise ConfigError(
            f"the pools are too small for one request: {sizes.full_pages} full pages of {page} "
            f"bytes (1 needed), {sizes.swa_pages} SWA pages of {swa_bytes} bytes ({row_swa} "
            f"needed), {sizes.rings} rings of {ring} bytes (1 needed); raise --kv-cache-bytes "
            "or the flag of that pool"
        )
    if max(sizes.full_pages, sizes.swa_pages, sizes.rings) > MOST_UNITS:
        raise ConfigError(
            f"a pool has at most {MOST_UNITS} pages or rings, not {sizes.full_pages} full pages, "
            f"{sizes.swa_pages} SWA pages and {sizes.rings} rings: lower --kv-cache-bytes, or the "
            "flags of the pools"
        )
    return sizes


def pool_shares(cache: CacheSpec, sizes: PoolSizes) -> dict[str, int]:
    """Return the bytes of each pool's units: full pages, SWA pages, rings."""
    return {
        "full": sizes.full_pages * cache.full_page_bytes,
        "swa": sizes.swa_pages * cache.swa_page_bytes,
        "rings": sizes.rings * cache.ring_bytes,
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
