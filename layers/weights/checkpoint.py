"""The safetensors files of a checkpoint folder, opened together and read one tensor at a time."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Protocol, Self, cast

from safetensors import SafetensorError, safe_open
from torch import Tensor

from layers.fault_text import bounded

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class WeightError(Exception):
    """Weight files that cannot be read or do not fit the network; names the file or tensors."""

    def __init__(self, message: str) -> None:
        super().__init__(bounded(message))


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """What a file says of a tensor before its bytes are read; `dtype` is safetensors' code."""

    shard: str
    shape: tuple[int, ...]
    dtype: str


class TensorFiles(Protocol):
    """Tensors of a checkpoint by name; a context manager."""

    headers: dict[str, TensorHeader]

    def __enter__(self) -> Self:
        """Return itself."""
        ...

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        ...

    @property
    def shards(self) -> list[str]:
        """Names of the files, in order."""
        ...

    def names(self, shard: str) -> Iterator[str]:
        """Yield the names of the tensors of one file, in order."""
        ...

    def tensor(self, name: str, cut: tuple[slice, ...] = ()) -> Tensor:
        """Read one tensor, or the part of it that an index cuts out, onto the CPU."""
        ...

    def path(self, shard: str) -> Path:
        """Return where a file is."""
        ...


class Checkpoint:
    """A `TensorFiles`: all tensors of `model.safetensors`, or of the shards that its index names.

    A context manager; the files are mapped, not read, until `tensor` is called.
    """

    def __init__(self, folder: Path) -> None:
        """Open the files and read their headers.

        Raises WeightError naming the file that is missing, damaged or outside of `folder`, or the
        tensors that the index and the shards disagree about.
        """
        self.folder = folder
        self._stack = ExitStack()
        self._handles: dict[str, Any] = {}
        self.headers: dict[str, TensorHeader] = {}
        try:
            self._open_all()
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def shards(self) -> list[str]:
        """Names of the files, in order."""
        return sorted(self._handles)

    def names(self, shard: str) -> Iterator[str]:
        """Yield the names of the tensors of one file, in order."""
        return (name for name, header in self.headers.items() if header.shard == shard)

    def tensor(self, name: str, cut: tuple[slice, ...] = ()) -> Tensor:
        """Read one tensor, or the part of it that an index cuts out, onto the CPU.

        Raises WeightError naming the file when it is damaged.
        """
        shard = self.headers[name].shard
        try:
            if cut:
                return cast(Tensor, self._handles[shard].get_slice(name)[cut])
            return cast(Tensor, self._handles[shard].get_tensor(name))
        except (SafetensorError, OSError, ValueError) as error:
            raise self._damaged(shard, error) from error

    def path(self, shard: str) -> Path:
        """Return where a file is."""
        return self.folder / shard

    def _open_all(self) -> None:
        if (self.folder / SINGLE_FILE).exists():
            self._open(SINGLE_FILE)
            return
        if not (self.folder / INDEX_FILE).exists():
            raise WeightError(f"there is neither {SINGLE_FILE} nor {INDEX_FILE} in {self.folder}")
        shard_of = _read_index(self.folder / INDEX_FILE)
        for shard in sorted(set(shard_of.values())):
            self._open(shard)
        astray = [
            f"{name} is not in {shard}, where the index has it"
            for name, shard in shard_of.items()
            if name not in self.headers or self.headers[name].shard != shard
        ]
        raise_faults(self.folder / INDEX_FILE, astray)

    def _open(self, shard: str) -> None:
        path = self.folder / shard
        # A name that no file system takes is missing, too.
        if not os.path.isfile(path):
            raise WeightError(f"weight file {path} is missing")
        try:
            handle = cast(Any, safe_open)(path, framework="pt", device="cpu")
            self._handles[shard] = self._stack.enter_context(handle)
            for name in sorted(handle.keys()):
                part = handle.get_slice(name)
                if name in self.headers:
                    first = self.headers[name].shard
                    raise WeightError(f"tensor {name} is in two files, {first} and {shard}")
                shape = tuple(part.get_shape())
                self.headers[name] = TensorHeader(shard, shape, str(part.get_dtype()))
        except (SafetensorError, OSError, ValueError) as error:
            raise self._damaged(shard, error) from error

    def _damaged(self, shard: str, error: Exception) -> WeightError:
        return WeightError(f"weight file {self.folder / shard} is damaged: {error}")


def raise_faults(where: Path, faults: list[str]) -> None:
    """Raise WeightError with the first eight of `faults` and the count of the rest, if any."""
    if faults:
        rest = f"; and {len(faults) - 8} more" if len(faults) > 8 else ""
        raise WeightError(f"{where}: {'; '.join(faults[:8])}{rest}")


def _read_index(path: Path) -> dict[str, str]:
    """Return the file of each tensor. Raises WeightError unless all are plain names of files."""
    try:
        index: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightError(f"{path} cannot be read as JSON: {error}") from error
    shard_of: Any = cast(dict[str, Any], index).get("weight_map") if isinstance(index, dict) else {}
    if not isinstance(shard_of, dict) or not shard_of:
        raise WeightError(f"{path} has no weight_map")
    for shard in cast(dict[str, Any], shard_of).values():
        # A name that leads elsewhere could make the server read any file of the machine.
        if not isinstance(shard, str) or not shard.endswith(".safetensors") or not _is_plain(shard):
            raise WeightError(f"{path} names {shard!r}, which is no .safetensors file beside it")
    return cast(dict[str, str], shard_of)


def _is_plain(name: str) -> bool:
    return name == PurePosixPath(name).name == PureWindowsPath(name).name and "\0" not in name
