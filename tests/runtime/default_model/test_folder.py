"""The checkpoint that comes along: all there, what was trained, and missed aloud."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import runtime.default_model.folder as folder_module
from layers.models.deepseek_v4.config import load_config, resolve_record_format
from layers.weights.checkpoint import Checkpoint
from runtime.default_model.folder import CHECKPOINT, FILES, default_model_folder
from runtime.errors import ConfigError
from tests.testing.published_tensors import tensor_shapes
from tests.testing.server_process import ROOT
from tests.train.geometry import default_config

MOST_BYTES = 24_000_000


def test_it_is_the_model_that_the_training_exports() -> None:
    folder = default_model_folder()

    assert json.loads((folder / "config.json").read_text("utf-8")) == default_config()
    with Checkpoint(folder) as checkpoint:
        names = {name for name in checkpoint.headers if not name.endswith(".scale")}
    assert names == set(tensor_shapes(load_config(folder)))
    assert sum(path.stat().st_size for path in folder.iterdir()) <= MOST_BYTES


def test_it_has_every_kind_of_layer_and_the_published_heads() -> None:
    config = load_config(default_model_folder())

    kinds = {
        (ratio, layer < config.num_hash_layers)
        for layer, ratio in enumerate(config.compress_ratios)
    }
    assert kinds == {(ratio, hashed) for ratio in (0, 4, 128) for hashed in (True, False)}
    assert resolve_record_format(config, "auto", "float32") == "fp8"


def test_everybody_may_read_it() -> None:
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in CHECKPOINT.iterdir())


@pytest.mark.parametrize("missing", FILES)
def test_a_partial_checkout_is_told_which_file_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    for name in FILES:
        (tmp_path / name).touch()
    (tmp_path / missing).unlink()
    monkeypatch.setattr(folder_module, "CHECKPOINT", tmp_path)

    with pytest.raises(ConfigError, match=f"lacks {missing}; .*--model-path"):
        default_model_folder()


def test_a_server_without_it_says_so_and_ends(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, runtime.default_model.folder as folder\n"
        "folder.CHECKPOINT = pathlib.Path(sys.argv[1])\n"
        "from runtime.launch import serve\n"
        "sys.exit(serve([]))\n"
    )
    shutil.copy(CHECKPOINT / "config.json", tmp_path)

    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert done.returncode == 2
    assert "error: the default model is not complete" in done.stderr
    assert "model.safetensors" in done.stderr


def test_finding_it_needs_neither_torch_nor_tokenizers() -> None:
    code = (
        "import sys; from runtime.default_model import default_model_folder; "
        "default_model_folder(); "
        "assert not {'torch', 'tokenizers', 'safetensors'} & set(sys.modules)"
    )

    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
