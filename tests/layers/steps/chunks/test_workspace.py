"""Chunks that attend a workspace: how it is cut up must not be seen."""

import pytest
import torch
from torch import Tensor

from layers.steps.chunks.step import PrefillStep
from tests.testing.attention_pair import assert_alike, pair
from tests.testing.direct import Chunk
from tests.testing.tiny_model import prompt

pytestmark = pytest.mark.usefixtures("poisoned_empty")


def test_slices_of_tokens_change_no_bit(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [prompt(length, seed=length) for length in (280, 150)]
    _, fused = pair(PrefillStep, device, index_topk=8)

    def run() -> Tensor:
        rows = [fused.row(tokens) for tokens in prompts]
        fused.step([Chunk(rows[0], 137), Chunk(rows[1], 1)])
        out = fused.step([Chunk(row, len(row.tokens)) for row in rows])[0]
        for row in rows:
            fused.release(row)
        return out

    want = run()
    # 61 tokens a slice of index, 37 a slice of scores; both cut inside rows.
    monkeypatch.setattr("layers.steps.chunks.blocks.INDEX_BYTES", 61 * 4 * 256)
    monkeypatch.setattr("layers.steps.chunks.choice.SCORES_BYTES", 37 * 4 * 256)
    got = run()

    assert torch.equal(got, want)


def test_a_workspace_may_hold_no_block(device: torch.device) -> None:
    reference, fused = pair(PrefillStep, device)
    tokens = prompt(3, seed=1)

    got, want = (
        direct.prefill(direct.row(tokens), chunk=2, logits=()) for direct in (fused, reference)
    )

    assert_alike(got, want)
