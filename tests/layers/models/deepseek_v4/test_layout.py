"""Bytes of records, pages and states."""

from dataclasses import replace

import pytest

from layers.models.deepseek_v4.layout import (
    cache_spec,
    indexer_layout,
    paged_groups,
    record_layout,
    state_groups,
    state_layout,
    window_group,
)
from layers.models.deepseek_v4.pool_spec import PoolSpec, RecordFormat
from mem_cache.spec import Paged, TreeSpec

FLASH_RATIOS = (0, 0, *((4, 128) * 20), 4)


def spec(record_format: RecordFormat, ratios: tuple[int, ...] = FLASH_RATIOS) -> PoolSpec:
    """Return the shapes of V4-Flash."""
    return PoolSpec(
        tree=TreeSpec(),
        layer_ratios=ratios,
        head_dim=512,
        rope_dim=64,
        index_head_dim=128,
        record_format=record_format,
    )


def test_packed_pages_have_the_published_sizes() -> None:
    flash = spec("fp8")

    assert record_layout(flash, 64).page_bytes == 37440
    assert record_layout(flash, 2).page_bytes == 1728
    assert record_layout(flash, 64).row_bytes == 584
    assert indexer_layout(flash).page_bytes == 64 * 128 + 64 * 4 == 8448


def test_units_of_flash_weigh_what_the_design_says() -> None:
    flash = spec("fp8")

    assert flash.num_layers == 43
    # A page's two C128 records are a 32nd of a block of 64.
    assert cache_spec(flash).full_page_bytes == 21 * (37440 + 8448) + 20 * 37440 // 32
    assert round(cache_spec(flash).full_page_bytes / 256) == 3856
    assert window_group(flash).page_bytes == 43 * 37440
    assert cache_spec(flash).state_bytes == 4 * (21 * 8 * 4 * (512 + 128) + 20 * 2 * 3 * 512)


@pytest.mark.parametrize(("record_format", "size"), [("bf16", 2), ("fp32", 4)])
def test_plain_pages_are_their_numbers(record_format: RecordFormat, size: int) -> None:
    plain = spec(record_format)

    assert record_layout(plain, 64).page_bytes == 64 * 512 * size
    assert indexer_layout(plain).page_bytes == 64 * 128 * size


def test_layers_of_one_kind_weigh_nothing_in_the_pools_of_another() -> None:
    windows = spec("fp8", ratios=(0, 0))

    assert paged_groups(windows) == ()
    assert state_groups(windows) == ()
    assert paged_groups(spec("fp8", ratios=(128,))) == (Paged("c128", 1170),)
    assert [group.name for group in paged_groups(spec("fp8"))] == ["c4", "indexer", "c128"]


def test_columns_of_a_state_row_follow_each_other() -> None:
    state = state_layout(spec("fp8"))

    assert state.main == (0, 1024)
    assert state.index == (2048, 2304)
    assert state.width == 2560


@pytest.mark.parametrize("draft_tokens", [1, 3, 7])
def test_a_resume_point_does_not_grow_with_draft_tokens(draft_tokens: int) -> None:
    plain, drafts = spec("fp8"), spec("fp8")
    drafts = replace(drafts, tree=TreeSpec(draft_tokens=draft_tokens))
    without, with_drafts = cache_spec(plain), cache_spec(drafts)

    assert with_drafts.state_bytes == without.state_bytes == without.live_state_bytes
    assert with_drafts.live_state_bytes > without.live_state_bytes
    assert (without.packs_states, with_drafts.packs_states) == (False, True)
    assert with_drafts.tree == drafts.tree
