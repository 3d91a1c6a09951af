"""Traces are written below one folder, whole or not at all."""

import gzip
import json
from pathlib import Path

import pytest

from runtime.executor.trace_folder import TraceFolder, write_trace


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of an operator, beside one that is nobody's business."""
    (tmp_path / "other").mkdir()
    return tmp_path / "made" / "traces"


def test_the_folder_is_made_and_names_are_clear_and_new(root: Path) -> None:
    traces = TraceFolder(str(root))
    files = [traces.new_file(""), traces.new_file("."), traces.new_file("a/b/../c")]

    assert [file.parent for file in files] == [root, root, root / "a" / "c"]
    assert len({file.name for file in files}) == 3
    assert all(file.name.startswith("umbra-") for file in files)
    assert all(file.name.endswith(".trace.json.gz") for file in files)
    assert traces.new_file(str(root / "d")).parent == root / "d"


@pytest.mark.parametrize(
    "below", ["..", "a/../..", "../other", "../traces2", "/", "/etc", "link", "link/x", "a\0b"]
)
def test_a_folder_elsewhere_is_refused(root: Path, below: str) -> None:
    traces = TraceFolder(str(root))
    (root / "link").symlink_to(root.parent.parent / "other")

    with pytest.raises(ValueError, match=r"profile-dir|null"):
        traces.new_file(below)

    assert list((root.parent.parent / "other").iterdir()) == []


def test_what_can_be_no_folder_is_refused(root: Path) -> None:
    traces = TraceFolder(str(root))
    (root / "file").write_text("x")
    (root / "circle").symlink_to(root / "circle")

    for below in ("file", "file/a", "circle", "x" * 300):
        with pytest.raises((OSError, ValueError)):
            traces.new_file(below)


def test_a_trace_is_packed(tmp_path: Path) -> None:
    file = tmp_path / "x.trace.json.gz"

    def export(path: str) -> None:
        Path(path).write_text("[1]")

    write_trace(export, file)

    assert json.loads(gzip.decompress(file.read_bytes())) == [1]
    assert list(tmp_path.iterdir()) == [file]


def test_of_a_trace_that_fails_nothing_is_left(tmp_path: Path) -> None:
    def broken(path: str) -> None:
        Path(path).write_text("half")
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_trace(broken, tmp_path / "x.trace.json.gz")

    assert list(tmp_path.iterdir()) == []
