"""The network against references that were computed without it: log-probabilities and tokens."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from jit_kernels.hyper_connection import mhc_post
from layers.blocks.hyper_connection import BlockResult
from layers.models.deepseek_v4.model import ReferenceV4
from layers.models.deepseek_v4.network import Layer, Projected
from layers.models.deepseek_v4.pool_spec import RecordFormat
from layers.steps.contract import Writes
from tests.testing.compare import Bounds, assert_close
from tests.testing.direct import Direct, load_model

LOGPROB = Bounds(atol=2e-4)
# A greedy token may differ only where the reference's two best logits are this close.
MARGIN = 1e-3


@cache
def checkpoint(folder: Path, dtype: torch.dtype) -> ReferenceV4:
    """Return the network in `folder`; loaded once."""
    return load_model(folder, dtype)


@cache
def reference(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Tensor], float]:
    """Return the prompts, all reference tensors, and the logits' standard deviation."""
    facts = json.loads((folder / "ref.json").read_text("utf-8"))
    tensors = load_file(folder / "ref.safetensors")
    tensors |= load_file(folder / "ref_official.safetensors")
    return facts["prompts"], tensors, facts["sensitivity"]["logits_std"]


def smooth(oracle_dir: Path) -> Path:
    """Return the checkpoint with the real head geometry, or skip."""
    folder = oracle_dir / "v4_smooth_fp8"
    if not (folder / "ref.json").is_file():
        pytest.skip(f"no v4_smooth_fp8 in {oracle_dir.name}")
    return folder


def run(
    direct: Direct, folder: Path, which: int, *, chunk: int | None, steps: int
) -> tuple[Tensor, list[int], Tensor]:
    """Run one prompt; return logits at the recorded positions, greedy tokens, and their logits."""
    prompts, tensors, _ = reference(folder)
    prompt, positions = prompts[which], tensors[f"p{which}.positions"].tolist()
    assert positions[-1] == prompt["len"] - 1
    row = direct.row(prompt["ids"])
    logits = direct.prefill(row, chunk=chunk, logits=positions)
    tokens, chosen = direct.greedy(row, logits[-1], steps)
    direct.release(row)
    return logits, tokens, chosen


def assert_matches(folder: Path, which: int, chunk: int | None, steps: int = 32) -> None:
    """Hold a float32 run to the reference."""
    prompts, tensors, _ = reference(folder)
    direct = Direct(checkpoint(folder, torch.float32), "fp32")
    direct.poison()

    logits, tokens, chosen = run(direct, folder, which, chunk=chunk, steps=steps)

    want = tensors[f"p{which}.logits"].log_softmax(-1)
    assert_close(logits.log_softmax(-1), want, LOGPROB, what=f"prompt {which}")
    for step, (have, goal) in enumerate(zip(tokens, prompts[which]["greedy"], strict=False)):
        if have != goal:
            # Whatever follows another token cannot be compared.
            assert prompts[which]["margin"][step] < MARGIN, f"prompt {which} step {step}"
            return
    want = tensors[f"p{which}.step_logits"][:steps].log_softmax(-1)
    assert_close(chosen.log_softmax(-1), want, LOGPROB, what=f"steps of prompt {which}")


def watch(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Return the last token's streams as they enter each layer, from here on."""
    entering, before = list[Tensor](), Layer.before

    def noted(self: Layer, result: BlockResult, step: Writes) -> Projected:
        parts = result.take()
        entering.append(mhc_post(*parts)[-1])
        return before(self, BlockResult(*parts), step)

    monkeypatch.setattr(Layer, "before", noted)
    return entering


@pytest.mark.parametrize("which", [0, 1, 2, 3, 5, 8, 11, 15, 18])
def test_a_prompt_in_one_piece_gives_the_reference(oracle_v4_small: Path, which: int) -> None:
    assert_matches(oracle_v4_small, which, None)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [None, 64, 256])
@pytest.mark.parametrize("which", range(21))
def test_every_prompt_gives_the_reference(
    oracle_v4_small: Path, which: int, chunk: int | None
) -> None:
    assert_matches(oracle_v4_small, which, chunk)


@pytest.mark.parametrize(("which", "chunk"), [(5, 1), (12, 7), (16, 64), (19, 256)])
def test_a_prompt_in_chunks_gives_the_reference(
    oracle_v4_small: Path, which: int, chunk: int
) -> None:
    assert_matches(oracle_v4_small, which, chunk, steps=8)


def test_the_hidden_streams_of_every_layer_are_the_reference(
    oracle_v4_small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, tensors, _ = reference(oracle_v4_small)
    direct = Direct(checkpoint(oracle_v4_small, torch.float32), "fp32")
    entering = watch(monkeypatch)

    direct.prefill(direct.row(prompts[12]["ids"]), logits=())

    want = tensors["p12.hidden"]
    assert len(entering) == want.shape[0]
    for layer, streams in enumerate(entering):
        assert_close(streams, want[layer], Bounds(atol=1e-4, rtol=1e-4), what=f"layer {layer}")


@pytest.mark.parametrize("which", [3, 11, 16])
def test_block_weights_in_fp8_and_fp4_give_the_reference(oracle_dir: Path, which: int) -> None:
    assert_matches(smooth(oracle_dir), which, None, steps=3)


@pytest.mark.parametrize(
    ("record_format", "dtype", "against", "bound"),
    [
        ("fp8", torch.float32, "kv8_logits", 0.02),
        ("bf16", torch.float32, "logits", 0.02),
        ("bf16", torch.bfloat16, "logits", 0.05),
        ("fp8", torch.bfloat16, "kv8_logits", 0.05),
    ],
)
def test_low_precision_stays_near_its_reference(
    oracle_dir: Path, record_format: RecordFormat, dtype: torch.dtype, against: str, bound: float
) -> None:
    folder = smooth(oracle_dir)
    _, tensors, std = reference(folder)
    direct = Direct(checkpoint(folder, dtype), record_format)
    direct.poison()

    for which in (3, 11, 16):
        logits, _, _ = run(direct, folder, which, chunk=100, steps=1)
        error = logits - tensors[f"p{which}.{against}"]
        assert float(error.square().mean().sqrt()) / std < bound, f"prompt {which}"
