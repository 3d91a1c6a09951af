"""Tensors of a GGUF file under their published names."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from layers.weights.checkpoint import WeightError
from layers.weights.gguf_checkpoint import GGUF_INDEX, GgufCheckpoint


def write(folder: Path, *, heads: int | None = None, length: int = 4 * 16) -> np.ndarray:
    """Write a file of 8 rows of 2 numbers, behind 16 bytes, and its index; return the rows."""
    rows = np.arange(16, dtype=np.float32).reshape(8, 2)
    (folder / "file.gguf").write_bytes(b"\0" * 16 + rows.tobytes()[:length])
    stored = {"offset": 16, "shape": [8, 2], "kind": "F32"}
    stored |= {} if heads is None else {"heads": heads}
    index = {"file": str(folder / "file.gguf"), "tensors": {"a.weight": stored}}
    (folder / GGUF_INDEX).write_text(json.dumps(index), encoding="utf-8")
    return rows


def test_a_tensor_is_read_whole_and_in_part(tmp_path: Path) -> None:
    rows = torch.from_numpy(write(tmp_path))

    with GgufCheckpoint(tmp_path) as files:
        assert files.shards == ["file.gguf"]
        assert list(files.names("file.gguf")) == ["a.weight"]
        assert files.headers["a.weight"].shape == (8, 2)
        assert torch.equal(files.tensor("a.weight"), rows)
        part = files.tensor("a.weight", (slice(2, 4), slice(1, 2)))
        assert torch.equal(part, rows[2:4, 1:2])


def test_rows_of_heads_are_put_back_into_halves(tmp_path: Path) -> None:
    rows = torch.from_numpy(write(tmp_path, heads=2))

    with GgufCheckpoint(tmp_path) as files:
        got = files.tensor("a.weight")

    # Neighbours 2i, 2i + 1 of a head are channels i and i + D / 2.
    assert torch.equal(got, rows[[0, 2, 1, 3, 4, 6, 5, 7]])


def test_a_file_that_ends_early_or_is_gone_is_named(tmp_path: Path) -> None:
    write(tmp_path, length=20)
    with pytest.raises(WeightError, match=r"file\.gguf ends before a\.weight"):
        GgufCheckpoint(tmp_path)
    (tmp_path / "file.gguf").unlink()
    with pytest.raises(WeightError, match=r"file\.gguf cannot be read"):
        GgufCheckpoint(tmp_path)
