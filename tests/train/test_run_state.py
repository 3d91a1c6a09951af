"""What a training leaves on disk, and what is made of it."""

from pathlib import Path

import pytest
import torch

from tests.train.run_state import (
    Progress,
    StateError,
    load_portable,
    load_state,
    save_portable,
    save_state,
)

PROGRESS = Progress(step=7, tokens=900, seconds=1.5, moment_steps=3, lost_at=4)
PARAMETERS = {
    "embed.weight": torch.randn(50, 40),
    "layers.0.attn.attn_sink": torch.randn(3),
    "layers.0.ffn.gate.tid2eid": torch.tensor([[0, 1], [2, 0]]),
    "layers.0.attn.wkv.weight": torch.randn(30, 40),
}
MOMENTS = {"first.embed.weight": torch.randn(50, 40)}


def test_a_state_comes_back_exactly_and_replaces_the_one_before(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    save_state(folder, Progress(), MOMENTS, PARAMETERS)
    save_state(folder, PROGRESS, PARAMETERS, MOMENTS)

    progress, parameters, moments = load_state(folder)

    assert progress == PROGRESS
    assert parameters.keys() == PARAMETERS.keys()
    assert all(torch.equal(parameters[name], PARAMETERS[name]) for name in PARAMETERS)
    assert torch.equal(moments["first.embed.weight"], MOMENTS["first.embed.weight"])
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_portable_files_are_small_and_hold_matrices_as_bfloat16(tmp_path: Path) -> None:
    (tmp_path / "part-9.safetensors").write_bytes(b"of another run")
    save_portable(tmp_path, PROGRESS, PARAMETERS, limit=4500)

    files = list(tmp_path.glob("part-*"))
    progress, parameters = load_portable(tmp_path)

    assert len(files) == 2
    assert max(path.stat().st_size for path in files) <= 4500
    assert progress == PROGRESS
    assert torch.equal(parameters["embed.weight"], PARAMETERS["embed.weight"].bfloat16().float())
    for name in ("layers.0.attn.attn_sink", "layers.0.ffn.gate.tid2eid"):
        assert torch.equal(parameters[name], PARAMETERS[name])


def test_folders_without_a_state_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"progress\.json"):
        load_state(tmp_path)
    with pytest.raises(StateError, match="no parts"):
        load_portable(tmp_path)
    (tmp_path / "progress.json").write_text('{"step": 1, "steps": 2}')
    with pytest.raises(StateError, match="cannot be taken up"):
        load_state(tmp_path)
    (tmp_path / "progress.json").write_text('{"step": 1}')
    with pytest.raises(StateError, match=r"parameters\.safetensors"):
        load_state(tmp_path)
