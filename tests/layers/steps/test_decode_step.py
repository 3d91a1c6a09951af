"""Steps of decoding rows, against reference steps."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from jit_kernels.compress_pool import EndedBlocks
from jit_kernels.paged_attention import PagedKeys, SplitPlan, paged_attention
from layers.blocks.rope import RopeFrequencies
from layers.models.deepseek_v4.pools import KvPools
from layers.steps.chunks.step import PrefillStep
from layers.steps.contract import FoldWeights, PoolingWeights, Step, StepSizes
from layers.steps.decode_step import DecodeRows, DecodeStep, whole_tiles
from layers.steps.forward_batch import ForwardBatch
from tests.testing.attention_pair import (
    CONFIG,
    AttentionLayers,
    LayersOver,
    assert_alike,
    assert_same_pools,
    pair,
)
from tests.testing.compare import assert_same_bits
from tests.testing.direct import Direct, Row
from tests.testing.fused_model import decode_rows
from tests.testing.tiny_model import prompt

pytestmark = pytest.mark.usefixtures("poisoned_empty")


def as_decoded(
    batch: ForwardBatch,
    pools: KvPools,
    sizes: StepSizes,
    rope: RopeFrequencies,
    *,
    pages: int = 0,
) -> Step:
    """Return steps of one token a row as steps of decoding rows, all others as chunks.

    pages  columns of page tables beyond those in use
    """
    if batch.input_ids.shape != batch.chunk_start.shape:
        return PrefillStep(batch, pools, sizes, rope)
    spare = batch.page_table.new_zeros((batch.page_table.shape[0], pages))
    rows = DecodeRows(
        input_ids=batch.input_ids,
        position=batch.chunk_start,
        page_table=torch.cat((batch.page_table, spare), 1),
        window=batch.save_window,
        ring=batch.ring,
    )
    return DecodeStep(rows, pools, sizes, rope)


def decoded(direct: Direct, rows: list[Row], steps: int) -> Tensor:
    """Take rows further by so many tokens, prefilling what they have; return all they give."""
    parts = [direct.prefill(row, stop=len(row.tokens), logits=()) for row in rows if row.tokens]
    for token in prompt(steps, seed=steps):
        for row in rows:
            row.tokens.append(token)
        parts.append(direct.decode(rows))
    return torch.cat(parts)


def compare(lengths: list[int], steps: int, device: torch.device, **sizes: int) -> None:
    """Let layers decode rows over both steps that begin with prompts of these lengths."""
    reference, fused = pair(partial(as_decoded, pages=3), device, **sizes)
    prompts = [prompt(length, seed=length) for length in lengths]

    got, want = (
        decoded(direct, [direct.row(tokens) for tokens in prompts], steps)
        for direct in (fused, reference)
    )

    assert_alike(got, want)
    assert_same_pools(fused, reference)


@pytest.mark.parametrize(
    "lengths",
    [[1, 2, 3, 4], [62, 126, 127, 128], [250, 253, 254, 255], [400, 1, 127, 61, 300]],
)
def test_rows_at_several_positions_equal_the_reference(
    device: torch.device, lengths: list[int]
) -> None:
    compare(lengths, 5, device)


def test_a_row_may_begin_by_decoding(device: torch.device) -> None:
    compare([0, 0, 7], 6, device)


def test_rows_choose_among_more_blocks_than_they_attend(device: torch.device) -> None:
    compare([290, 30, 33, 150], 6, device, index_topk=8)


def test_a_window_is_overwritten_all_around(device: torch.device) -> None:
    compare([60], 140, device)


def test_slices_of_rows_change_no_bit(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, fused = pair(as_decoded, device, index_topk=8)
    prompts = [prompt(length, seed=length) for length in (200, 90, 130, 55, 61)]

    def run() -> Tensor:
        rows = [fused.row(tokens) for tokens in prompts]
        out = decoded(fused, rows, 2)
        for row in rows:
            fused.release(row)
        return out

    want = run()
    # Two rows a slice.
    monkeypatch.setattr("layers.steps.decode_step.SCORES_BYTES", 2 * 4 * 256)
    got = run()

    assert_same_bits(got, want)


class _OtherRows:
    """Layers whose decode steps have other rows than the batch: `make_rows` says which."""

    def __init__(
        self, layers: AttentionLayers, make_rows: Callable[[ForwardBatch], DecodeRows]
    ) -> None:
        self.config, self._layers, self._make_rows = layers.config, layers, make_rows

    def prefill(self, batch: ForwardBatch, pools: KvPools) -> Tensor:
        """Return what the layers give to as many rows as the batch has."""
        layers = self._layers
        if batch.input_ids.shape != batch.chunk_start.shape:
            return LayersOver(layers, as_decoded).prefill(batch, pools)
        step = DecodeStep(self._make_rows(batch), pools, layers.sizes, layers.rope)
        return layers.over(step)[: batch.chunk_start.shape[0]]


def test_rows_that_pad_a_batch_change_nothing(device: torch.device) -> None:
    layers = AttentionLayers(CONFIG, device)
    lone, padded = (
        Direct(model, "fp8", device=device)
        for model in (LayersOver(layers, as_decoded), _OtherRows(layers, decode_rows))
    )
    prompts = [prompt(length, seed=length) for length in (127, 62, 0)]
    for direct in (lone, padded):
        direct.poison()

    got, want = (
        decoded(direct, [direct.row(tokens) for tokens in prompts], 3) for direct in (padded, lone)
    )

    assert_alike(got, want)
    for direct in (lone, padded):
        direct.pools.swa[:, 0] = 0
    assert_same_pools(padded, lone)


def test_a_step_of_padding_alone_writes_nothing_but_unit_0(device: torch.device) -> None:
    layers = AttentionLayers(CONFIG, device)

    def nobody(batch: ForwardBatch) -> DecodeRows:
        return DecodeRows.empty(5, pages=2, window_pages=batch.window.shape[1], device=device)

    direct = Direct(_OtherRows(layers, nobody), "fp8", device=device)
    direct.poison()
    before = {name: tensor.clone() for name, tensor in direct.pools.tensors().items()}

    out = direct.decode([direct.row(prompt(1, seed=length)) for length in range(5)])

    assert out.isfinite().all()
    for name, tensor in direct.pools.tensors().items():
        first = 1 if name == "swa" else 0
        assert_same_bits(tensor[:, first:], before[name][:, first:], what=name)


@pytest.mark.parametrize("rows", [1, 5])
def test_rotations_are_those_of_rows_and_of_the_blocks_that_they_end(
    device: torch.device, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block's rotation is that of its first position, up to a million and for padding rows."""
    layers = AttentionLayers(CONFIG, device)
    direct, rope = Direct(LayersOver(layers, as_decoded), "fp8", device=device), layers.rope
    batch = DecodeRows.empty(rows, pages=4096, window_pages=4, device=device)
    position = torch.tensor([-1, 0, 130, 99_999, 999_999], device=device)[-rows:]
    batch.position.copy_(position)

    step = DecodeStep(batch, direct.pools, layers.sizes, rope)

    for compressed in (False, True):
        want = rope.rotation(position, compressed=compressed)
        assert_same_bits(step.rotation(compressed=compressed), want)
    nothing = torch.empty(0)
    ended: list[EndedBlocks] = []
    for name in ("pool_tokens", "fold_tokens"):
        monkeypatch.setattr(
            f"layers.steps.decode_step.{name}", lambda *_, **given: ended.append(given["ended"])
        )
    step.pool(1, nothing, PoolingWeights(nothing, nothing, nothing))
    step.fold(2, nothing, FoldWeights(nothing, nothing))
    for ratio, blocks in zip((4, 128), ended, strict=True):
        want = rope.rotation(position - (ratio - 1), compressed=True)
        assert_same_bits(blocks.rotation, want, what=f"blocks of {ratio}")


def test_plans_of_attention_are_for_the_keys_that_layers_read(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: dict[int, set[tuple[int, int]]] = {}

    def watched(
        q: Tensor,
        window: PagedKeys,
        extra: PagedKeys | None,
        *,
        plan: SplitPlan,
        **more: Any,
    ) -> Tensor:
        columns = (0, 0) if extra is None else (extra.slots.shape[1], id(extra.lengths))
        read.setdefault(id(plan), set()).add(columns)
        return paged_attention(q, window, extra, plan=plan, **more)

    monkeypatch.setattr("layers.steps.decode_step.paged_attention", watched)
    compare([130, 3], 1, device, index_topk=8)

    assert len(read) == 3
    assert all(len(kinds) == 1 for kinds in read.values())


def test_columns_of_slots_are_whole_tiles() -> None:
    assert [whole_tiles(count) for count in (0, 1, 64, 65)] == [0, 64, 64, 128]
