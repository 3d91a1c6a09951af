"""Opening the files of a checkpoint folder."""

import json
from pathlib import Path

import pytest
import torch

from layers.weights.checkpoint import (
    Checkpoint,
    TensorHeader,
    WeightError,
    raise_faults,
)
from tests.layers.checkpoint_files import write_shards, write_single


def test_a_single_file_is_read_tensor_by_tensor(tmp_path: Path) -> None:
    write_single(tmp_path, {"b": torch.arange(6).view(2, 3), "a": torch.ones(1)})

    with Checkpoint(tmp_path) as checkpoint:
        assert checkpoint.shards == ["model.safetensors"]
        assert list(checkpoint.names("model.safetensors")) == ["a", "b"]
        assert checkpoint.headers["b"] == TensorHeader("model.safetensors", (2, 3), "I64")
        assert torch.equal(checkpoint.tensor("b"), torch.arange(6).view(2, 3))


def test_shards_are_found_through_the_index(tmp_path: Path) -> None:
    write_shards(tmp_path, [{"a": torch.zeros(1)}, {"b": torch.ones(1)}])

    with Checkpoint(tmp_path) as checkpoint:
        assert len(checkpoint.shards) == 2
        assert checkpoint.tensor("b").item() == 1


def test_files_may_be_links(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    write_single(tmp_path / "blobs", {"a": torch.ones(1)})
    (tmp_path / "snapshot" / "model.safetensors").symlink_to("../blobs/model.safetensors")

    with Checkpoint(tmp_path / "snapshot") as checkpoint:
        assert checkpoint.tensor("a").item() == 1


def test_a_folder_without_weights_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match=r"neither model\.safetensors nor .*index\.json"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("kept", [0, 4, 20, -1])
def test_a_truncated_file_is_named(tmp_path: Path, kept: int) -> None:
    path = write_single(tmp_path, {"a": torch.ones(100)})
    path.write_bytes(path.read_bytes()[:kept])

    with pytest.raises(WeightError, match=r"model\.safetensors is damaged"):
        Checkpoint(tmp_path)


def test_a_file_of_other_bytes_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0" + b"no json here at all")

    with pytest.raises(WeightError, match=r"model\.safetensors is damaged"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(
    "shard",
    [
        "../model.safetensors",
        "/etc/model.safetensors",
        "sub/model.safetensors",
        "..\\model.safetensors",
        "C:model.safetensors",
        "a\0.safetensors",
        "model.bin",
        "..",
        "",
    ],
)
def test_an_index_leads_nowhere_else(tmp_path: Path, shard: str) -> None:
    outside = tmp_path / "model.safetensors"
    inside = tmp_path / "checkpoint"
    inside.mkdir()
    write_single(tmp_path, {"a": torch.ones(1)})
    write_shards(inside, [{"a": torch.ones(1)}], a=shard)

    with pytest.raises(WeightError, match=r"no \.safetensors file beside it"):
        Checkpoint(inside)
    assert outside.exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_an_index_of_another_form_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text, encoding="utf-8")

    with pytest.raises(WeightError, match=r"index\.json"):
        Checkpoint(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path, [{"a": torch.ones(1)}], b="model-00002-of-00002.safetensors")

    with pytest.raises(WeightError, match=r"model-00002-of-00002\.safetensors is missing"):
        Checkpoint(tmp_path)


def test_a_tensor_that_its_shard_lacks_is_named(tmp_path: Path) -> None:
    shards = [{"a": torch.ones(1)}, {"b": torch.ones(1)}]
    write_shards(tmp_path, shards, b="model-00001-of-00002.safetensors", c__d="x.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"] | {
        "c.d": "model-00001-of-00002.safetensors"
    }
    index.write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")

    with pytest.raises(WeightError, match=r"b is not in model-00001.*; c\.d is not in"):
        Checkpoint(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    shards = [{"a": torch.ones(1)}, {"a": torch.zeros(1), "b": torch.ones(1)}]
    write_shards(tmp_path, shards, a="model-00001-of-00002.safetensors")

    with pytest.raises(WeightError, match="tensor a is in two files"):
        Checkpoint(tmp_path)


def test_at_most_eight_faults_are_listed(tmp_path: Path) -> None:
    raise_faults(tmp_path, [])
    with pytest.raises(WeightError, match=r"f7$"):
        raise_faults(tmp_path, [f"f{number}" for number in range(8)])
    with pytest.raises(WeightError, match=r"f7; and 3 more$"):
        raise_faults(tmp_path, [f"f{number}" for number in range(11)])
