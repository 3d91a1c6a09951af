"""Shapes of V4's pools, against counting by hand."""

import pytest

from layers.models.deepseek_v4.pool_spec import PoolSpec
from mem_cache.spec import TreeSpec


@pytest.mark.parametrize("draft_tokens", range(8))
def test_rings_of_state_hold_what_is_read_wherever_draft_tokens_are_rejected(
    draft_tokens: int,
) -> None:
    tree = TreeSpec(draft_tokens=draft_tokens)
    spec = PoolSpec(tree, (0, 4, 128), 512, 64, 128, "fp8")
    if not draft_tokens:
        assert (spec.state_rows, spec.state_banks) == (8, 2)
    start = 1000
    for entries, span in ((spec.state_rows, 8), (spec.state_banks, 2)):
        # Whatever is accepted, what lies before the end is kept, and every token has an entry.
        kept = range(start + 1 - span, start + 1 + draft_tokens)
        assert len({position % entries for position in kept}) == len(kept)
    assert spec.replay_tokens == 128 + 2 * 127


def test_a_pool_specification_finds_its_layers_by_ratio() -> None:
    spec = PoolSpec(
        tree=TreeSpec(),
        layer_ratios=(0, 0, 4, 128, 4),
        head_dim=512,
        rope_dim=64,
        index_head_dim=128,
        record_format="fp8",
    )

    assert spec.num_layers == 5
    assert spec.layers_with_ratio(4) == (2, 4)
    assert spec.layers_with_ratio(128) == (3,)
    assert spec.layers_with_ratio(7) == ()


@pytest.mark.parametrize(
    ("window", "ratios", "tokens"),
    [
        (128, (0, 4, 128), 128 + 2 * 127),
        (2, (0, 0), 2 + 1),
        (2, (0, 4), 8 + 1),
        (100, (4, 128), 128 + 99),
        (200, (128,), 200),
    ],
)
def test_a_replay_reaches_back_over_window_and_ring(
    window: int, ratios: tuple[int, ...], tokens: int
) -> None:
    for draft_tokens in (0, 7):
        tree = TreeSpec(window=window, draft_tokens=draft_tokens)
        spec = PoolSpec(tree, ratios, 512, 64, 128, "fp8")

        assert spec.replay_tokens == tokens
