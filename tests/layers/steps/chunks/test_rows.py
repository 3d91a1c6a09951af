"""Chunks whose tokens attend as decoding rows, against the reference network's attention."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from jit_kernels.indexer_queries import indexer_queries
from jit_kernels.paged_logits import paged_logits
from layers.steps.chunks.step import PrefillStep
from tests.testing.attention_pair import assert_alike, assert_same_pools, pair
from tests.testing.compare import assert_same_bits
from tests.testing.direct import Chunk, Direct
from tests.testing.tiny_model import prompt

pytestmark = pytest.mark.usefixtures("poisoned_empty")

make_step = partial(PrefillStep, deterministic=True)


def in_company(direct: Direct) -> Tensor:
    """Take rows of different lengths through two steps, and a replay through a third."""
    rows = [direct.row(prompt(length, seed=length)) for length in (290, 1, 150, 40, 5)]
    first = [Chunk(row, stop) for row, stop in zip(rows, (257, 1, 130, 33, 3), strict=True)]
    rest = [Chunk(row, len(row.tokens)) for row in rows if len(row.tokens) > 1]
    parts = [direct.step(first)[0], direct.step(rest)[0]]
    again = direct.replay(rows[0].tokens, rows[0].pages, 100, 280)
    parts.append(direct.prefill(again, chunk=110, logits=()))
    return torch.cat(parts)


@pytest.mark.parametrize("top_k", [8, 512])
def test_tokens_attend_what_the_reference_attends(device: torch.device, top_k: int) -> None:
    reference, fused = pair(make_step, device, index_topk=top_k)

    assert_alike(in_company(fused), in_company(reference))
    assert_same_pools(fused, reference)


@pytest.mark.parametrize("scores_bytes", [1 << 29, 4 * 4 * 72])
def test_slices_change_no_bit(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, scores_bytes: int
) -> None:
    fused = pair(make_step, device, index_topk=8)[1]
    want = in_company(fused)
    monkeypatch.setattr("layers.steps.chunks.rows.MOST_ROWS", 32)
    monkeypatch.setattr("layers.steps.chunks.rows.SCORES_BYTES", scores_bytes)

    got = in_company(fused)

    assert_same_bits(got, want)


class Written(TorchDispatchMode):
    """Notes in which order ops write to memory."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[int] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.addresses.append(out.data_ptr())
        return out


def test_a_launch_lies_between_a_table_and_the_scores_that_read_it(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Scores may be launched before the launch before them has ended: see `paged_logits`.
    fused, written = pair(make_step, device, index_topk=8)[1], Written()
    begun: list[int] = []
    between: list[bool] = []

    def noted_queries(*args: Any) -> Any:
        begun.append(len(written.addresses))
        return indexer_queries(*args)

    def noted_scores(*args: Any, page_table: Tensor, **more: Any) -> Any:
        between.append(page_table.data_ptr() not in written.addresses[begun[-1] :])
        return paged_logits(*args, page_table=page_table, **more)

    monkeypatch.setattr("layers.steps.chunks.rows.indexer_queries", noted_queries)
    monkeypatch.setattr("layers.steps.chunks.rows.paged_logits", noted_scores)
    monkeypatch.setattr("layers.steps.chunks.rows.MOST_ROWS", 32)
    with written:
        fused.prefill(fused.row(prompt(40, seed=1)), logits=())

    assert len(between) > 1
    assert all(between)
