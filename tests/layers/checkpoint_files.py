"""Small checkpoint folders for tests: one file, or shards with an index."""

import json
from pathlib import Path
from typing import Any, cast

import safetensors.torch
from torch import Tensor


def write_single(folder: Path, tensors: dict[str, Tensor]) -> Path:
    """Write `model.safetensors`; return its path."""
    path = folder / "model.safetensors"
    cast(Any, safetensors.torch).save_file(tensors, path)
    return path


def write_shards(folder: Path, shards: list[dict[str, Tensor]], **moved: str) -> Path:
    """Write one file a shard and their index; return the index's path.

    moved  replaces file names in the index: key with dots as `__`
    """
    weight_map: dict[str, str] = {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        cast(Any, safetensors.torch).save_file(tensors, folder / name)
        weight_map.update(dict.fromkeys(tensors, name))
    weight_map.update({key.replace("__", "."): name for key, name in moved.items()})
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}), encoding="utf-8")
    return index
