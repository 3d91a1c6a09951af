"""A network without a path sees nothing through it, and everything else as before."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
import safetensors.torch
import torch

import layers.steps.reference.reference_step as reference_step
from layers.blocks.rope import RopeFrequencies
from layers.models.deepseek_v4.config import pool_spec
from layers.models.deepseek_v4.model import angles
from layers.models.deepseek_v4.pool_spec import PoolSpec
from layers.steps.forward_batch import ForwardBatch, Forwarded
from layers.steps.reference.attention_plan import AttentionPlan, plan_attention
from tests.evaluate.ablation import NO_SINK, PATHS, main, take_away, without_sinks
from tests.layers.checkpoint_files import write_single
from tests.testing.direct import CPU, Direct
from tests.testing.tiny_model import CONFIG, build, cold_batch, prompt

LENGTH = 300
SPEC = pool_spec(CONFIG, "fp32")
WINDOW = SPEC.tree.window


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the planner back at the end."""
    monkeypatch.setattr(reference_step, "plan_attention", plan_attention)


def _plan(length: int = LENGTH) -> AttentionPlan:
    rope = angles(CONFIG, CPU)
    return plan_attention(cold_batch(length), SPEC, top_k=CONFIG.index_topk, rope=rope)


def _last_logits(monkeypatch: pytest.MonkeyPatch, paths: Sequence[str], seed: int) -> torch.Tensor:
    """Return the logits after a prompt that ends with token 5, without these paths."""

    def edited(
        batch: ForwardBatch, spec: PoolSpec, *, live: int, top_k: int, rope: RopeFrequencies
    ) -> AttentionPlan:
        plan = plan_attention(batch, spec, live=live, top_k=top_k, rope=rope)
        for path in paths:
            plan = PATHS[path](plan, spec.tree.window)
        return plan

    monkeypatch.setattr(reference_step, "plan_attention", edited)
    direct = build()
    row = direct.row([*prompt(LENGTH - 1, seed), 5])
    return direct.prefill(row, logits=[LENGTH - 1])[0]


def test_without_any_path_a_token_knows_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (_last_logits(monkeypatch, list(PATHS), seed) for seed in (1, 2))

    assert torch.equal(one, other)


@pytest.mark.parametrize("left", PATHS)
def test_each_path_carries_something_by_itself(monkeypatch: pytest.MonkeyPatch, left: str) -> None:
    others = [path for path in PATHS if path != left]
    one, other = (_last_logits(monkeypatch, others, seed) for seed in (1, 2))

    assert not torch.equal(one, other)


def test_without_the_window_the_own_token_is_left_and_all_blocks() -> None:
    whole = _plan()
    plan = PATHS["window"](whole, WINDOW)

    assert (plan.window.index[:, : WINDOW - 1] == 0).all()
    assert torch.equal(plan.window.index[:, WINDOW - 1], whole.window.index[:, WINDOW - 1])
    assert plan.fold is not None
    assert whole.fold is not None
    assert torch.equal(plan.fold.index[:, WINDOW - 1 :], whole.fold.index[:, WINDOW - 1 :])
    assert (plan.fold.index[:, : WINDOW - 1] == 0).all()


@pytest.mark.parametrize("length", [40, LENGTH], ids=["all blocks attended", "blocks chosen"])
def test_without_c4_nothing_is_chosen(length: int) -> None:
    whole = _plan(length)
    plan = PATHS["c4"](whole, WINDOW)

    assert plan.pooling is not None
    assert plan.pooling.index is not None
    assert torch.equal(plan.pooling.index, whole.window.index)
    assert plan.fold is whole.fold


def test_without_c128_only_the_window_is_left_in_its_layers() -> None:
    whole = _plan()
    plan = PATHS["c128"](whole, WINDOW)

    assert plan.fold is not None
    assert torch.equal(plan.fold.index, whole.window.index)
    assert plan.pooling is whole.pooling


def _prefilled(direct: Direct, batch: ForwardBatch) -> torch.Tensor:
    made = direct.model.prefill(batch, direct.pools)
    assert isinstance(made, Forwarded)
    return made.logits


@pytest.mark.usefixtures("restored")
def test_what_is_taken_away_is_gone_from_every_network_made_later() -> None:
    batch, pools = cold_batch(LENGTH), build()
    whole = _prefilled(pools, batch)

    found = [whole]
    for path in PATHS:
        take_away(path)
        fresh = build()
        found.append(_prefilled(fresh, batch))

    assert all(not torch.equal(a, b) for a, b in itertools.combinations(found, 2))


def test_a_path_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hope", "--port", "0"]) == 2
    assert "hope is none of window, c4, c128" in capsys.readouterr().err


def test_the_network_on_a_gpu_is_not_edited(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["c4", "--port", "0", "--device", "cuda"]) == 2
    assert "on the CPU" in capsys.readouterr().err


def test_a_copy_without_sinks_differs_in_nothing_else(tmp_path: Path) -> None:
    model, copy = tmp_path / "model", tmp_path / "copy"
    model.mkdir()
    copy.mkdir()
    codes = torch.randn(4, 4).to(torch.float8_e4m3fn)
    tensors = {"layers.0.attn.attn_sink": torch.ones(3), "layers.0.attn.wkv.weight": codes}
    write_single(model, tensors)
    (model / "config.json").write_text("{}")

    without_sinks(model, copy)

    got = safetensors.torch.load_file(copy / "model.safetensors")
    assert got["layers.0.attn.attn_sink"].tolist() == [NO_SINK] * 3
    assert torch.equal(got["layers.0.attn.wkv.weight"].view(torch.uint8), codes.view(torch.uint8))
    assert (copy / "config.json").read_text() == "{}"
