"""The tensors of a GGUF file by their published names, as an index beside the configuration says.

The index is `model.gguf.json`: {"file": path, "tensors": {name: {"offset": bytes, "shape": [rows,
columns] or [columns], "kind": "Q4_1", "heads": H}}}. Where `heads` is there, the rows of each head
are stored for rotations of neighbouring channels, and are put back into halves.
"""

import json
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from layers.weights.checkpoint import TensorHeader, WeightError
from layers.weights.gguf_blocks import expand, row_bytes

__all__ = ["GGUF_INDEX", "GgufCheckpoint"]

GGUF_INDEX = "model.gguf.json"


class GgufCheckpoint:
    """A `TensorFiles`; all numbers are expanded to float32 when they are read."""

    def __init__(self, folder: Path) -> None:
        """Map the file. Raises WeightError where it is missing or too short."""
        index: Any = json.loads((folder / GGUF_INDEX).read_text(encoding="utf-8"))
        self._path, self._tensors = Path(index["file"]), index["tensors"]
        try:
            with self._path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise WeightError(f"weight file {self._path} cannot be read: {error}") from error
        self.headers = {
            name: TensorHeader(self._path.name, tuple(stored["shape"]), "F32")
            for name, stored in self._tensors.items()
        }
        for name, stored in self._tensors.items():
            if stored["offset"] + self._bytes(name) > len(self._map):
                self._map.close()
                raise WeightError(f"weight file {self._path} ends before {name}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()

    @property
    def shards(self) -> list[str]:
        """The name of the file."""
        return [self._path.name]

    def names(self, shard: str) -> Iterator[str]:
        """Yield the names of all tensors, in the order of the file."""
        del shard
        yield from sorted(self._tensors, key=lambda name: self._tensors[name]["offset"])

    def path(self, shard: str) -> Path:
        """Return where the file is; see `TensorFiles`."""
        del shard
        return self._path

    def tensor(self, name: str, cut: tuple[slice, ...] = ()) -> Tensor:
        """Return one tensor in float32, or the part of it that an index cuts out."""
        stored, shape = self._tensors[name], self.headers[name].shape
        begin = stored["offset"]
        data = bytearray(self._map[begin : begin + self._bytes(name)])
        rows = 1 if len(shape) == 1 else shape[0]
        whole = expand(torch.frombuffer(data, dtype=torch.uint8).view(rows, -1), stored["kind"])
        if "heads" in stored:
            whole = whole.view(stored["heads"], -1, 2, shape[-1]).transpose(1, 2).reshape(shape)
        return whole.view(shape)[cut] if cut else whole.view(shape)

    def _bytes(self, name: str) -> int:
        shape = self.headers[name].shape
        rows = 1 if len(shape) == 1 else shape[0]
        return rows * row_bytes(self._tensors[name]["kind"], shape[-1])
