"""Attention over packed records by FlashMLA's kernels for Hopper.

They take 64 or 128 heads; others are padded by queries of zeros. FlashMLA's own scheduler divides
tiles evenly among the processors, so a row's bits depend on its company; the fixed plan gives each
row to one processor. Source: flash_mla 1.0.0, `flash_mla_with_kvcache` with `use_legacy`; its
scheduler's record of eight integers a processor is that of the public sources.
"""

from typing import TYPE_CHECKING, Any

import torch
from flash_mla import flash_mla_with_kvcache, get_mla_metadata

from jit_kernels.paged_attention import KEY_TILE, SplitPlan
from jit_kernels.paged_attention.triton_heads import pad_heads

if TYPE_CHECKING:
    from jit_kernels.paged_attention import PagedKeys

_LEAST_HEADS = 64
# Of what a plan says to a processor.
_RECORD_WORDS = 8


def paged_attention(
    q: torch.Tensor,
    window: "PagedKeys",
    extra: "PagedKeys | None",
    sink: torch.Tensor,
    scale: float,
    plan: SplitPlan,
    deterministic: bool,
) -> torch.Tensor:
    """Attend; see `jit_kernels.paged_attention.paged_attention`."""
    rows, heads, width = q.shape
    if not q.numel():
        return torch.empty((rows, heads, width), dtype=q.dtype, device=q.device)
    q, sink = pad_heads(q, sink)
    schedule = _fixed(plan, q, window, extra) if deterministic else _even(plan)
    more = {}
    if extra is not None:
        more = {
            "extra_k_cache": _view(extra),
            "extra_indices_in_kvcache": extra.slots.unsqueeze(1),
            "extra_topk_length": extra.lengths,
        }
    out, _ = flash_mla_with_kvcache(
        q.unsqueeze(1),
        _view(window),
        block_table=None,
        cache_seqlens=None,
        head_dim_v=width,
        tile_scheduler_metadata=schedule,
        softmax_scale=scale,
        is_fp8_kvcache=True,
        indices=window.slots.unsqueeze(1),
        attn_sink=sink,
        topk_length=window.lengths,
        use_legacy=True,
        **more,
    )
    return out[:, 0, :heads]


def _fixed(plan: SplitPlan, q: torch.Tensor, window: "PagedKeys", extra: "PagedKeys | None") -> Any:
    """Return FlashMLA's schedule of rows that are not split."""
    schedule = plan.held.get("fixed")
    if schedule is None:
        processors = processors_of(q.device, q.shape[1])
        schedule = get_mla_metadata()[0]
        records, splits = fixed_schedule(_tiles(window, extra), processors)
        schedule.tile_scheduler_metadata, schedule.num_splits = records, splits
        plan.held["fixed"] = schedule
    return schedule


def _even(plan: SplitPlan) -> Any:
    """Return FlashMLA's schedule of evenly divided tiles, which the first call of a kind fills."""
    if "even" not in plan.held:
        plan.held["even"] = get_mla_metadata()[0]
    return plan.held["even"]


def fixed_schedule(tiles: torch.Tensor, processors: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return FlashMLA's plan that splits no row: (records [processors, 8], splits [B + 1]) int32.

    tiles  [B] int64   tiles of 64 keys of each row, at least 1

    A record is first row, last row, first tile of the first row, tiles of the last row, part that
    the first row goes on with, whether the first and the last row are split, padding. Processors
    without work start at row B.
    """
    rows, device = tiles.shape[0], tiles.device
    edge = torch.arange(processors + 1, device=device) * rows // processors
    first, last = edge[:-1], edge[1:] - 1
    idle = last < first
    records = torch.zeros((processors, _RECORD_WORDS), dtype=torch.int32, device=device)
    records[:, 0] = first.masked_fill(idle, rows)
    records[:, 1] = last.masked_fill(idle, rows)
    records[:, 3] = tiles[last.clamp(min=0)]
    return records, torch.arange(rows + 1, dtype=torch.int32, device=device)


def _tiles(window: "PagedKeys", extra: "PagedKeys | None") -> torch.Tensor:
    """Return how many tiles FlashMLA makes of each row's keys, [B] int64."""
    tiles = _tiles_of(window).clamp(min=1)
    return tiles if extra is None else tiles + _tiles_of(extra)


def _tiles_of(keys: "PagedKeys") -> torch.Tensor:
    rows, columns = keys.slots.shape
    if keys.lengths is None:
        return torch.full((rows,), columns // KEY_TILE, device=keys.slots.device)
    return (keys.lengths.to(torch.int64) + (KEY_TILE - 1)) // KEY_TILE


def processors_of(device: torch.device, heads: int) -> int:
    """Return how many parts FlashMLA runs at once: it wants the plan to have as many records."""
    count = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, count // (heads // _LEAST_HEADS))


def _view(keys: "PagedKeys") -> torch.Tensor:
    """Return pages as [U, page_rows, 1, 584]: strides of records, scales found by the kernel."""
    layout = keys.layout
    shape = (keys.pages.shape[0], layout.page_rows, 1, layout.row_bytes)
    return keys.pages.as_strided(shape, (layout.page_bytes, layout.row_bytes, layout.row_bytes, 1))
