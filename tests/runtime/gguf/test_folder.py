"""A GGUF file as a checkpoint folder."""

from pathlib import Path

import numpy as np
import pytest
import torch

from layers.models.contract import Settings
from layers.models.registry import read_model
from layers.weights.loading import load_weights
from runtime.errors import ConfigError
from runtime.gguf.folder import gguf_folder
from runtime.tokenizer.tokenizer import TextTokenizer
from tests.testing.gguf_files import TEMPLATE, write_gguf


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """Keep folders out of the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("kind", ["F32", "Q4_1", "Q8_0"])
def test_a_file_becomes_a_checkpoint(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "tiny.gguf"
    tensors = write_gguf(path, kind=kind)

    folder = gguf_folder(path)

    network = read_model(folder).build(torch.device("cpu"), Settings())
    load_weights(network, folder, progress=False)
    found = dict(network.named_weights())
    down = found["model.layers.0.mlp.down_proj.weight"]
    assert isinstance(down, torch.Tensor)
    error = np.abs(down.numpy() - tensors["blk.0.ffn_down.weight"]).max()
    assert error <= {"F32": 0.0, "Q8_0": 0.03, "Q4_1": 0.3}[kind]
    tokenizer = TextTokenizer.load(folder)
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer.encode("<|im_start|>ab1") == [0, 4, 5]


def test_a_folder_is_made_once_and_anew_for_a_file_that_changed(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    first = gguf_folder(path)
    written = (first / "config.json").stat().st_mtime_ns

    assert gguf_folder(path) == first
    assert (first / "config.json").stat().st_mtime_ns == written
    write_gguf(path, kind="F32")
    assert gguf_folder(path) != first


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "Q5_0"}, "is Q5_0, and F32 or Q4_1 or Q8_0 are read"),
        ({"architecture": "qwen2"}, "general.architecture of a GGUF file must be llama"),
        ({"pre": "llama-bpe"}, "tokenizer.ggml.pre of a GGUF file must be"),
        ({"extra": {"rope_freqs.weight": np.ones(8, np.float32)}}, "rope_freqs.weight of the"),
    ],
)
def test_what_is_not_served_is_refused_and_leaves_no_folder(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, **changes)  # type: ignore[arg-type]

    for _ in range(2):
        with pytest.raises(ConfigError, match=message):
            gguf_folder(path)


def test_a_damaged_file_is_refused_by_name(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF" + b"\0" * 60)

    with pytest.raises(ConfigError, match=r"tiny\.gguf cannot be read as GGUF"):
        gguf_folder(path)
