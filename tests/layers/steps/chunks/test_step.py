"""Steps of chunks over fused kernels, against the reference network's attention."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from layers.steps.chunks.step import PrefillStep
from tests.testing.attention_pair import assert_alike, assert_same_pools, pair
from tests.testing.direct import Chunk, Direct
from tests.testing.tiny_model import prompt

pytestmark = pytest.mark.usefixtures("poisoned_empty")

Script = Callable[[Direct], Tensor]


def compare(script: Script, device: torch.device, **sizes: int) -> None:
    """Let both networks follow a script of steps; compare what they give and what they store."""
    reference, fused = pair(PrefillStep, device, **sizes)
    assert_alike(script(fused), script(reference))
    assert_same_pools(fused, reference)


@pytest.mark.parametrize("chunk", [1, 7, 64, 127, 128, 256])
def test_a_prompt_in_chunks_equals_the_reference(device: torch.device, chunk: int) -> None:
    tokens = prompt(300 if chunk > 1 else 259, seed=chunk)

    def script(direct: Direct) -> Tensor:
        row = direct.row(tokens)
        if chunk < 64:
            # A few small ones do: they follow a larger chunk.
            before = direct.prefill(row, stop=len(tokens) - 3 * chunk, logits=())
            return torch.cat((before, direct.prefill(row, chunk=chunk, logits=())))
        return direct.prefill(row, chunk=chunk, logits=())

    compare(script, device)


def test_rows_of_different_lengths_share_a_step(device: torch.device) -> None:
    prompts = [prompt(length, seed=length) for length in (270, 1, 131, 64, 5)]

    def script(direct: Direct) -> Tensor:
        rows = [direct.row(tokens) for tokens in prompts]
        first = [Chunk(row, stop) for row, stop in zip(rows, (140, 1, 130, 60, 3), strict=True)]
        rest = [Chunk(row, len(row.tokens)) for row in rows if len(row.tokens) > 1]
        return torch.cat((direct.step(first)[0], direct.step(rest)[0]))

    compare(script, device)


def test_a_replay_reads_no_window_and_writes_no_block_before_its_end(device: torch.device) -> None:
    tokens = prompt(400, seed=3)

    def script(direct: Direct) -> Tensor:
        source = direct.row(tokens)
        direct.prefill(source, stop=340, logits=())
        row = direct.replay(tokens, source.pages, 70, 340)
        other = direct.row(tokens[:30])
        # The point lies inside the block of 128 that the replay begins in.
        parts = [direct.step([Chunk(row, 110, points=[100]), Chunk(other, 30)])[0]]
        parts.append(direct.prefill(row, chunk=130, logits=()))
        return torch.cat(parts)

    compare(script, device)


def test_points_are_kept_inside_a_chunk_and_resumed(device: torch.device) -> None:
    tokens = prompt(290, seed=4)

    def script(direct: Direct) -> Tensor:
        source = direct.row(tokens)
        parts = [direct.prefill(source, stop=50, logits=())]
        out, points = direct.step([Chunk(source, 290, points=[51, 128, 131, 255, 260])])
        parts.append(out)
        for point in points:
            row = direct.resume(tokens, point, source.pages)
            parts.append(direct.prefill(row, stop=point.position + 9, logits=()))
            direct.release(row)
        return torch.cat(parts)

    compare(script, device)


def test_tokens_choose_among_more_blocks_than_they_attend(device: torch.device) -> None:
    prompts = [prompt(length, seed=length) for length in (290, 40, 150)]

    def script(direct: Direct) -> Tensor:
        rows = [direct.row(tokens) for tokens in prompts]
        first = direct.step([Chunk(row, len(row.tokens) - 33) for row in rows])[0]
        return torch.cat((first, direct.step([Chunk(row, len(row.tokens)) for row in rows])[0]))

    compare(script, device, index_topk=8)
