"""A GGUF file as a checkpoint folder: small files beside it in the cache, weights where they are.

The folder is `~/.cache/umbra/gguf/DIGEST`. Its name depends on the file's path, size and time, and
on the sources here, so that a change of any of them makes a new one.
"""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from runtime.errors import ConfigError
from runtime.gguf.header import check_header
from runtime.gguf.metadata import Metadata
from runtime.gguf.model_files import StoredTensor, generation_config, model_config, tensor_index
from runtime.gguf.tokenizer_files import tokenizer, tokenizer_config

__all__ = ["gguf_folder"]

_INDEX = "model.gguf.json"


def gguf_folder(path: Path) -> Path:
    """Return a checkpoint folder of a GGUF file, made now unless it is there.

    Raises ConfigError for a file that cannot be read or is not served, and without the library.
    """
    try:
        root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        folder = Path(root) / "umbra" / "gguf" / _digest(path)
    # A user without a home is a RuntimeError.
    except (OSError, RuntimeError) as fault:
        raise ConfigError(f"--model-path {path}: {fault}") from fault
    if (folder / _INDEX).is_file():
        return folder
    files = _files(path)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        for name, content in files.items():
            (made / name).write_text(json.dumps(content), encoding="utf-8")
        try:
            made.rename(folder)
        except OSError:
            # Another process was first, or the folder is there without an index.
            shutil.copytree(made, folder, dirs_exist_ok=True)
            shutil.rmtree(made)
    except OSError as fault:
        raise ConfigError(f"no folder for what {path} says: {fault}") from fault
    return folder


def _files(path: Path) -> dict[str, Any]:
    """Return the files of the folder, by name."""
    metadata, tensors = _read(path)
    config = model_config(metadata, tensors)
    return {
        "config.json": config,
        "generation_config.json": generation_config(metadata),
        "tokenizer.json": tokenizer(metadata),
        "tokenizer_config.json": tokenizer_config(metadata),
        _INDEX: {"file": str(path.resolve()), "tensors": tensor_index(config, tensors)},
    }


def _read(path: Path) -> tuple[Metadata, dict[str, StoredTensor]]:
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ConfigError(
            f"--model-path {path}: GGUF files are read by gguf: pip install -e '.[gguf]'"
        ) from None
    try:
        check_header(path)
        reader = GGUFReader(path)
        values = {key: field.contents() for key, field in reader.fields.items()}
    # What the library raises for a damaged file.
    except (OSError, ValueError, KeyError, IndexError, TypeError, MemoryError) as fault:
        raise ConfigError(f"--model-path {path} cannot be read as GGUF: {fault}") from fault
    tensors = {
        tensor.name: StoredTensor(
            int(tensor.data_offset),
            tuple(int(size) for size in reversed(tensor.shape)),
            tensor.tensor_type.name,
        )
        for tensor in reader.tensors
    }
    return Metadata(values), tensors


def _digest(path: Path) -> str:
    stat = path.stat()
    told = f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}"
    digest = hashlib.sha256(told.encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
