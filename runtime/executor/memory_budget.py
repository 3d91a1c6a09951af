"""How many pages, SWA pages and rings the pools get."""

from mem_cache.layout import full_page_bytes, ring_bytes, swa_page_bytes
from mem_cache.spec import PoolSizes, PoolSpec
from runtime.config import ServerConfig
from runtime.errors import ConfigError

# Resume points kept per running row, before full pages get the rest: an agent or a chat returns
# to the end of its prompt or of its answer, and a handful of others wait for their users.
POINTS_PER_ROW = 4
# Resume points never take more than this share of the budget.
POINT_SHARE = 0.3


def pool_sizes(config: ServerConfig, spec: PoolSpec) -> PoolSizes:
    """Return the size of each pool: what flags say, the rest out of `--kv-cache-bytes`.

    Rows come first, then resume points, full pages take what is left. Raises ConfigError when a
    pool would be too small for even one request.
    """
    rows = config.max_running_requests
    row_swa, page_swa = spec.tree.row_swa_pages, spec.tree.window_pages
    swa_bytes, ring, page = swa_page_bytes(spec), ring_bytes(spec), full_page_bytes(spec)
    row_bytes = row_swa * swa_bytes + ring
    while rows > 1 and rows * row_bytes > config.kv_cache_bytes // 2:
        rows //= 2
    point_bytes = page_swa * swa_bytes + ring
    spare = max(0, config.kv_cache_bytes - rows * row_bytes)
    points = min(POINTS_PER_ROW * rows, int(spare * POINT_SHARE) // point_bytes)
    swa_pages = config.swa_pages or rows * row_swa + points * page_swa
    rings = config.rings or rows + points
    sizes = PoolSizes(
        _full_pages(config, spec, swa_pages * swa_bytes + rings * ring), swa_pages, rings
    )
    if sizes.full_pages < 1 or sizes.rings < 1 or sizes.swa_pages < row_swa:
        raise ConfigError(
            f"the pools are too small for one request: {sizes.full_pages} full pages of {page} "
            f"bytes (1 needed), {sizes.swa_pages} SWA pages of {swa_bytes} bytes ({row_swa} "
            f"needed), {sizes.rings} rings of {ring} bytes (1 needed); raise --kv-cache-bytes "
            "or the flag of that pool"
        )
    return sizes


def _full_pages(config: ServerConfig, spec: PoolSpec, other_bytes: int) -> int:
    if config.full_pages is not None:
        return config.full_pages
    if config.max_total_tokens is not None:
        return config.max_total_tokens // spec.tree.page_size
    return max(0, config.kv_cache_bytes - other_bytes) // full_page_bytes(spec)
