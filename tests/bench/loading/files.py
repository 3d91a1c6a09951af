"""Files of a synthetic checkpoint: written as fast as a disk takes them, dropped from memory."""

import json
import os
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from layers.weights.checkpoint import INDEX_FILE
from tests.bench.loading.published import DraftHead, Stored, config_of, dealt, stored_tensors

__all__ = ["drop_from_memory", "shards_of", "write_checkpoint"]

_BLOCK_BYTES = 8 << 20
# Files that are written at once.
_WRITERS = 8
_SEED = 5


def write_checkpoint(
    folder: Path, *, layers: int, experts: int, shards: int, draft: DraftHead
) -> int:
    """Write config.json, the index and all files; return the bytes of all tensors.

    Numbers are the same few MiB again and again: random, and such as a checkpoint may have.
    """
    folder.mkdir(parents=True, exist_ok=True)
    raw, config = config_of(layers, experts, draft)
    files = dealt(stored_tensors(config, draft), shards)
    blocks = {code: make(np.random.default_rng(_SEED)) for code, make in _patterns(experts).items()}
    names = [f"model-{k:05d}-of-{len(files):05d}.safetensors" for k in range(1, len(files) + 1)]
    with ThreadPoolExecutor(_WRITERS) as threads:
        list(threads.map(lambda name, file: _write(folder / name, file, blocks), names, files))
    total = sum(tensor.nbytes for file in files for tensor in file)
    shard_of = {one.name: name for name, file in zip(names, files, strict=True) for one in file}
    index = {"metadata": {"total_size": total}, "weight_map": shard_of}
    (folder / INDEX_FILE).write_text(json.dumps(index), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(raw, indent=1), encoding="utf-8")
    return total


def shards_of(folder: Path) -> list[Path]:
    """Return the weight files of a checkpoint, in order."""
    return sorted(folder.glob("*.safetensors"))


def drop_from_memory(folder: Path) -> None:
    """Have the kernel forget what it keeps of the weight files; nobody may have them mapped."""
    for path in shards_of(folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _patterns(experts: int) -> dict[str, Callable[[np.random.Generator], memoryview]]:
    """Return what makes a block of each dtype: no NaN, scales of small numbers, experts there."""
    count = _BLOCK_BYTES

    def bytes_between(least: int, limit: int) -> Callable[[np.random.Generator], memoryview]:
        return lambda draw: _bytes_of(draw.integers(least, limit, count, dtype=np.uint8))

    def floats(draw: np.random.Generator) -> np.ndarray[Any, Any]:
        return draw.standard_normal(count // 4, dtype=np.float32)

    return {
        "I8": bytes_between(0, 256),
        "F8_E4M3": bytes_between(0, 127),
        "F8_E8M0": bytes_between(115, 122),
        # The upper half of a float32 is a bfloat16.
        "BF16": lambda draw: _bytes_of(floats(draw).view(np.uint16)[1::2].copy()),
        "F32": lambda draw: _bytes_of(floats(draw)),
        "I64": lambda draw: _bytes_of(draw.integers(0, experts, count // 8)),
    }


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    return memoryview(array.tobytes())


def _write(path: Path, tensors: Sequence[Stored], blocks: dict[str, memoryview]) -> None:
    """Write one file, and wait until the disk has it."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        ends = offset + tensor.nbytes
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, ends],
        }
        offset = ends
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb", buffering=0) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            block, left = blocks[tensor.dtype], tensor.nbytes
            while left:
                left -= file.write(block[: min(left, len(block))])
        os.fsync(file.fileno())
