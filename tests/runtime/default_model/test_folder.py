"""Making the stand-in's folder once, wherever it can be kept."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import runtime.default_model.folder as folder_module
from layers.config import load_config, resolve_record_format
from runtime.default_model.folder import FILES, ensure_default_model


def _fake_write(folder: Path) -> None:
    for name in FILES:
        (folder / name).write_text(name, encoding="utf-8")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write empty files instead of a model: these tests are about where and when."""
    monkeypatch.setattr(folder_module, "_write", _fake_write)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_default_model(tmp_path_factory.mktemp("root"))


def test_the_folder_is_an_ordinary_checkpoint(made: Path) -> None:
    folder = made

    config = load_config(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert resolve_record_format(config, "auto", "float32") == "fp8"
    assert "never been trained" in (folder / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 1


def test_every_kind_of_layer_is_there(made: Path) -> None:
    config = load_config(made)

    kinds = {
        (ratio, layer < config.num_hash_layers)
        for layer, ratio in enumerate(config.compress_ratios)
    }
    assert kinds == {(ratio, hashed) for ratio in (0, 4, 128) for hashed in (True, False)}
    assert config.rope_scaling is not None
    assert config.max_position_embeddings == 32768


@pytest.mark.usefixtures("quick")
def test_a_second_start_reuses_the_folder(tmp_path: Path) -> None:
    first = ensure_default_model(tmp_path)
    (first / "config.json").write_text("mine", encoding="utf-8")

    assert ensure_default_model(tmp_path) == first
    assert (first / "config.json").read_text(encoding="utf-8") == "mine"


@pytest.mark.usefixtures("quick")
def test_a_folder_that_lost_a_file_is_made_again(tmp_path: Path) -> None:
    folder = ensure_default_model(tmp_path)
    (folder / "tokenizer.json").unlink()

    assert ensure_default_model(tmp_path) == folder
    assert (folder / "tokenizer.json").exists()


def test_servers_that_start_at_once_share_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_writing = threading.Barrier(2, timeout=30)

    def write(folder: Path) -> None:
        both_writing.wait()
        _fake_write(folder)

    monkeypatch.setattr(folder_module, "_write", write)
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(ensure_default_model(tmp_path)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len(found) == 2
    assert found[0] == found[1]
    assert list(tmp_path.iterdir()) == [found[0]]


def test_a_failed_start_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(folder: Path) -> None:
        (folder / "config.json").write_text("{", encoding="utf-8")
        raise OSError("disk full")

    monkeypatch.setattr(folder_module, "_write", write)

    with pytest.raises(OSError, match="disk full"):
        ensure_default_model(tmp_path)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("quick")
def test_it_is_kept_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert ensure_default_model().parent == tmp_path / "home" / ".cache" / "umbra"

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert ensure_default_model().parent == tmp_path / "cache" / "umbra"


@pytest.mark.usefixtures("quick")
def test_without_a_writable_cache_it_is_kept_with_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()  # a folder cannot be made beneath a file, not even by root
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))

    folder = ensure_default_model()

    assert folder.parent == tmp_path / "tmp" / f"umbra-{os.getuid()}"
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert ensure_default_model() == folder


@pytest.mark.usefixtures("quick")
def test_a_temporary_folder_that_others_may_write_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    taken = tmp_path / f"umbra-{os.getuid()}"
    taken.mkdir()
    taken.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    folder = ensure_default_model()

    assert folder.is_dir()
    assert taken not in folder.parents
    assert list(taken.iterdir()) == []


def test_finding_the_folder_needs_neither_torch_nor_tokenizers(tmp_path: Path) -> None:
    folder = tmp_path / f"default-{folder_module._recipe_hash()}"
    folder.mkdir()
    _fake_write(folder)
    program = (
        "import sys; from pathlib import Path; "
        "from runtime.default_model import ensure_default_model; "
        "print(ensure_default_model(Path(sys.argv[1]))); "
        "assert not {'torch', 'tokenizers', 'safetensors'} & set(sys.modules)"
    )
    root = Path(folder_module.__file__).parents[2]
    command = [sys.executable, "-c", program, str(tmp_path)]

    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout.strip()) == (0, str(folder)), done.stderr
